"""Measure formulas on built pages in a real browser: Chromium without a window, on a local server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 500  # seconds for all pages
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
# Every page is opened in a frame of the wanted width. A formula is clipped where an ancestor hides a part of it, and
# where it makes the page itself wider than its window; inside an element that scrolls it is within reach.
SCRIPT = """
async function measured(page, width) {
  const frame = document.createElement('iframe');
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const view = frame.contentWindow, root = view.document.documentElement;
  if (view.MathJax) await view.MathJax.startup.promise;
  const found = {page, width, formulas: 0, errors: [], clipped: [], scrolled: 0};
  for (const formula of root.querySelectorAll('mjx-container')) {
    found.formulas += 1;
    const name = formula.closest('div, p, li, td')?.id || `formula ${found.formulas}`;
    const box = formula.querySelector('svg').getBoundingClientRect();
    if (formula.querySelector('[data-mml-node="merror"]')) found.errors.push(name);
    let above = formula, scrolls = false;
    while ((above = above.parentElement) && above !== root) {
      const style = view.getComputedStyle(above), edge = above.getBoundingClientRect();
      if (style.overflowX === 'visible' && style.overflowY === 'visible') continue;
      if (box.top < edge.top - 1 || box.bottom > edge.bottom + 1) found.clipped.push(name);
      if (['auto', 'scroll'].includes(style.overflowX)) {
        scrolls = true;
        found.scrolled += box.right > edge.right + 1;
        break;
      }
      if (box.right > edge.right + 1) found.clipped.push(name);
    }
    if (!scrolls && box.right > root.clientWidth + 1) found.clipped.push(name);
  }
  frame.remove();
  return found;
}
async function main() {
  const asked = await (await fetch('/asked.json')).json(), found = [];
  try {
    for (const [page, width] of asked) found.push(await measured(page, width));
  } catch (error) {
    found.push({failed: String(error)});
  }
  await fetch('/found', {method: 'POST', body: JSON.stringify(found)});
}
main();
"""


def browser() -> str | None:
    """Path of an installed Chromium."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def measure(site: Path, asked: Sequence[tuple[str, int]], profile: Path) -> list[dict[str, Any]]:
    """What each page of ``site`` shows at a width: formulas, errors, those clipped, and how many scroll.

    Args:
        site: folder of the built pages.
        asked: path of a page below it, and width of the window in pixels.
        profile: empty folder for the browser.
    """
    answers: Queue[list[dict[str, Any]]] = Queue()
    handler = partial(Handler, {"asked": list(asked), "answers": answers}, directory=str(site))
    program = browser()
    assert program is not None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/measure.html"
        command = [program, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            try:
                return answers.get(timeout=TIMEOUT)
            finally:
                running.terminate()
                server.shutdown()


class Handler(SimpleHTTPRequestHandler):
    """The files of a site, the measuring page, and the place where it puts its answer."""

    def __init__(self, exchange: dict[str, Any], *arguments: Any, **options: Any) -> None:
        self.exchange = exchange
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        own = {"/measure.html": f"<!doctype html><body><script>{SCRIPT}</script>",
               "/asked.json": json.dumps(self.exchange["asked"])}  # fmt: skip
        if self.path not in own:
            super().do_GET()
            return
        body = own[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path.endswith("html") else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.exchange["answers"].put(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""
