// What the pages do by themselves: read again what goes on, follow a log, take a file that is dropped.
"use strict";

const announcer = document.getElementById("announcer");

function announce(text) {
  if (text && announcer.textContent !== text) announcer.textContent = text;
}

// Puts a part of the page in the place of what it was, and keeps what the reader has done to it.
function replace(box, html) {
  const focused = box.contains(document.activeElement) ? document.activeElement.id : "";
  const ticked = [...box.querySelectorAll("input:checked")].map((each) => each.id);
  box.innerHTML = html;
  for (const id of ticked) {
    const input = document.getElementById(id);
    if (input) input.checked = true;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function follow(box) {
  let before = "";
  const state = () => box.firstElementChild?.dataset ?? {};
  const taken = () => {
    const { said, go } = state();
    if (said) announce(said);
    if (go) location.replace(go);
    document.dispatchEvent(new CustomEvent("taken", { detail: state() }));
  };
  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(box.dataset.live, { credentials: "same-origin" });
        const html = await answer.text();
        if (!answer.ok) {
          announce("The console has ended, or has lost this run. Load the page again.");
          return;
        }
        if (html !== before) {
          if (before || html.trim() !== box.innerHTML.trim()) replace(box, html);
          before = html;
          taken();
        }
      } catch {
        announce("The console does not answer.");
      }
    }
    if (state().goingOn !== "no") setTimeout(look, Number(box.dataset.every));
  };
  if (state().goingOn !== "no") setTimeout(look, Number(box.dataset.every));
}

function followLog(section) {
  const log = section.querySelector(".log");
  const title = section.querySelector("h2");
  const toEnd = section.querySelector("#to-end");
  const whole = section.querySelector("#whole-log");
  const MOST = 2_000_000;
  let task = section.dataset.task, start = 0, following = section.dataset.follow === "yes", turn = 0;
  let inInput = false;
  // KFP's executor tells what it got and what it did around the lines of the task itself.
  const shown = (text) => whole.checked ? text : text.split("\n").filter((line) => {
    if (inInput) {
      inInput = line !== "}";
      return false;
    }
    inInput = line.endsWith("Got executor_input:");
    return !line.startsWith("[KFP Executor ");
  }).join("\n");
  const look = async (mine) => {
    if (!task || mine !== turn) return;
    let part = { text: "", next: start, whole: false };
    if (!document.hidden) {
      try {
        const query = new URLSearchParams({ task, start });
        const answer = await fetch(`${section.dataset.log}?${query}`, { credentials: "same-origin" });
        if (answer.ok) part = await answer.json();
      } catch { /* The page itself says that the console does not answer. */ }
      if (mine !== turn) return;
    }
    if (part.text) {
      log.append(shown(part.text));
      if (log.textContent.length > MOST) log.textContent = log.textContent.slice(-MOST / 2);
      if (toEnd.checked) log.scrollTop = log.scrollHeight;
    }
    start = part.next;
    if (!part.whole) setTimeout(look, part.text ? 300 : 1000, mine);
  };
  const show = (name, again = false) => {
    if (name === task && turn && !again) return;
    task = name;
    start = 0;
    inInput = false;
    log.textContent = "";
    title.textContent = `Log of ${name}`;
    look(++turn);
  };
  document.addEventListener("taken", (event) => {
    if (following && event.detail.current) show(event.detail.current);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-task]");
    if (!link) return;
    event.preventDefault();
    following = false;
    show(link.dataset.task);
    section.scrollIntoView();
    log.focus({ preventScroll: true });
  });
  whole.addEventListener("change", () => show(task, true));
  if (task) show(task);
}

function takeFiles(form) {
  const input = form.querySelector("input[type=file]");
  let inside = 0;
  const mark = (on) => document.body.classList.toggle("dragging", on);
  addEventListener("dragenter", () => mark(++inside > 0));
  addEventListener("dragleave", () => mark(--inside > 0));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(Boolean(inside = 0));
    if (!event.dataTransfer?.files.length) return;
    input.files = event.dataTransfer.files;
    form.requestSubmit();
  });
}

for (const box of document.querySelectorAll("[data-live]")) follow(box);
for (const section of document.querySelectorAll("[data-log]")) followLog(section);
for (const form of document.querySelectorAll("form.drop")) takeFiles(form);
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
document.querySelector("[role=alert]")?.scrollIntoView({ block: "nearest" });
