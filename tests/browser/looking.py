"""What a reader, and an attacker, would see of a page: its marks, its words, and everything it asked for."""

from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.browser import DRAWN

# Marks of each plot that cover something within it: drawn, not merely asked for.
_MARKS = """() => {
  const kinds = {
    lines: ".scatterlayer path.js-line", points: ".scatterlayer .points path, .boxlayer .points path",
    bars: ".barlayer .point path", slices: ".treemaplayer .slice path.surface", boxes: ".boxlayer path.box",
    cells: ".heatmaplayer image", fills: ".scatterlayer path.js-fill", ticks: ".xtick text, .ytick text",
  };
  const found = {};
  for (const plot of document.querySelectorAll(".plot")) {
    const frame = plot.getBoundingClientRect();
    if (!frame.width) continue;  // not shown
    const marks = {};
    for (const [kind, where] of Object.entries(kinds)) {
      marks[kind] = [...plot.querySelectorAll(where)].filter((mark) => {
        const box = mark.getBoundingClientRect();
        const least = kind === "bars" || kind === "slices" ? Math.min : Math.max;  // a line may be level
        return least(box.width, box.height) > 0.5 && box.right >= frame.left && box.left <= frame.right
          && box.bottom >= frame.top && box.top <= frame.bottom;
      }).length;
    }
    found[plot.dataset.figure] = marks;
  }
  return found;
}"""
_SHOW = """(text) => {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  document.querySelector(".frame").replaceWith(document.importNode(fresh.querySelector(".frame"), true));
  delete document.body.dataset.drawn;
  window.laptime.drawAll();
}"""
_SHAPES = ("lines", "points", "bars", "slices", "boxes", "cells")


class Looked:
    """A page of the browser, and all that it did since it was opened."""

    def __init__(self, page):
        self.page = page
        self.said = []
        self.errors = []
        self.dialogs = []
        self.asked = []
        self.address = ""
        page.on("console", lambda message: self.said.append((message.type, message.text)))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, address, *, drawn=True):
        """Go there and wait until every figure is drawn."""
        self.address = Path(address).resolve().as_uri() if "://" not in str(address) else str(address)
        self.page.goto(self.address)
        if drawn:
            self.drawn()

    def drawn(self):
        """Wait until the page's script says so, then check that it is true."""
        self.page.wait_for_selector(DRAWN, state="attached")
        self.full()

    def show(self, sections):
        """Put another page's sections in place of this one's and draw them: Plotly is parsed only once."""
        self.page.evaluate(_SHOW, sections)
        self.drawn()

    def full(self):
        """Every figure that is shown has marks in it."""
        for name, marks in self.marks().items():
            assert sum(marks[shape] for shape in _SHAPES), f"nothing is drawn in the figure {name}: {marks}"

    def marks(self):
        """Marks with a size, counted by figure and kind."""
        return self.page.evaluate(_MARKS)

    def figures(self):
        """Names in the order of the page."""
        return list(self.marks())

    def words(self, where="body"):
        """The text of an element as a reader sees it, spaces and line ends made one."""
        return " ".join(self.page.inner_text(where).split())

    def texts(self, where):
        """The text of every such element, labels of figures included."""
        found = "all => all.map((one) => one.textContent)"
        return [" ".join(text.split()) for text in self.page.eval_on_selector_all(where, found)]

    def overflow(self):
        """Pixels by which the page is wider than its window."""
        return self.page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def was_quiet(self):
        """No message, no error, no dialog, and no request beyond its own file or origin."""
        loud = [one for one in self.said if one[0] in ("error", "warning", "assert")]
        assert not loud, loud
        assert not self.errors, self.errors
        assert not self.dialogs, self.dialogs
        assert not (foreign := [url for url in self.asked if not self._own(url)]), foreign

    def _own(self, url):
        mine, asked = urlsplit(self.address), urlsplit(url)
        if asked.scheme in ("data", "blob"):
            return True
        if mine.scheme == "file":
            return url.split("#")[0] == self.address
        return (asked.scheme, asked.netloc) == (mine.scheme, mine.netloc)
