"""Formats of files: how they are recognised, and what reads them. Tasks name the formats that they read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        title: for people.
        suffixes: of the names of its files, in lower case.
        reader: `module:Class` of a `gpu_pipelines.data.sources.reader.Reader`; empty if a file is one record.
        is_table: whether its rows have columns.
        is_text: whether an encoding may be given for it.
        is_packed: whether its files may be compressed as a whole.
        begins: bytes of its files at `place`, one of these; empty if no bytes identify it.
        place: offset of these bytes.
    """

    title: str
    suffixes: tuple[str, ...]
    reader: str = ""
    is_table: bool = False
    is_text: bool = False
    is_packed: bool = False
    begins: tuple[bytes, ...] = ()
    place: int = 0


#: All names of files in the formats of images that are read, as Pillow has them.
_IMAGES = (
    ".apng", ".avif", ".avifs", ".bmp", ".dds", ".gif", ".icb", ".ico", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe",
    ".jpeg", ".jpf", ".jpg", ".jpx", ".pbm", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff",
    ".vda", ".vst", ".webp",
)  # fmt: skip
#: PNG, JPEG, GIF, WebP and TIFF; what others begin with may begin a text as well.
_IMAGES_BEGIN = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")

#: By the name in `source_format`. The bytes are those of https://parquet.apache.org/docs/file-format/, of Arrow's "IPC
#: File Format" and "Encapsulated message format", and of POSIX.1-1988.
FORMATS = {
    "csv": Format(
        "CSV",
        (".csv", ".tsv", ".tab"),
        "gpu_pipelines.data.sources.tables:Csv",
        is_table=True,
        is_text=True,
        is_packed=True,
    ),
    "jsonl": Format(
        "JSON lines",
        (".jsonl", ".ndjson"),
        "gpu_pipelines.data.sources.tables:JsonLines",
        is_table=True,
        is_text=True,
        is_packed=True,
    ),
    "parquet": Format(
        "Parquet", (".parquet",), "gpu_pipelines.data.sources.tables:Parquet", is_table=True, begins=(b"PAR1",)
    ),
    "arrow": Format(
        "Arrow IPC",
        (".arrow", ".ipc", ".feather"),
        "gpu_pipelines.data.sources.tables:Arrow",
        is_table=True,
        begins=(b"ARROW1", b"\xff\xff\xff\xff"),
    ),
    "text": Format("text", (".txt",), "gpu_pipelines.data.sources.tables:Documents", is_text=True, is_packed=True),
    "tar": Format(
        "tar",
        (".tar", ".tgz", ".tbz2", ".txz"),
        "gpu_pipelines.data.sources.tar_shards:TarShards",
        is_packed=True,
        begins=(b"ustar",),
        place=257,
    ),
    "images": Format("images", _IMAGES, begins=_IMAGES_BEGIN),
}
#: Columns beside a conversation: what the system's message says, and the functions that the assistant may call, as a
#: list or as JSON.
SYSTEM, TOOLS = "system", "tools"
BESIDE_CHATS = (SYSTEM, TOOLS)
#: Columns of an instruction and what was answered, as Alpaca has them, and of what the instruction is about.
INSTRUCTED, INPUT = ("instruction", "output"), "input"
#: What may stand beside which columns, where it is more than beside a conversation.
BESIDE: dict[tuple[str, ...], tuple[str, ...]] = {INSTRUCTED: (INPUT, *BESIDE_CHATS)}
#: Formats of tables: rows with columns.
TABLES = tuple(name for name, each in FORMATS.items() if each.is_table)
