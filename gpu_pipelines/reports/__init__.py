"""HTML pages: self-contained, readable in the Vertex Pipelines UI's sandbox and in a browser."""
