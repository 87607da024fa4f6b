"use strict";
/* Follows a run that is still going: asks for its page again, and puts in only what changed. */
(() => {
  const line = document.getElementById("live");
  const EVERY_MS = 2000;
  let seal = line.dataset.seal;
  let updated = Date.now();
  let answers = true;
  let over = false;
  let skipped = false;  // a part was held by a selection
  let waits = null;  // the page that such a part is to be taken from

  function say() {
    const seconds = Math.round((Date.now() - updated) / 1000);
    const ago = seconds < 90 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
    const ended = waits === null ? "this page is complete" : "this page is complete but for what is selected";
    const text = over ? `The run has ended; ${ended}.`
      : answers ? `updated ${ago}` : `the server does not answer; updated ${ago}`;
    line.setAttribute("aria-live", over || !answers ? "polite" : "off");  // seconds are not read out
    if (line.textContent !== text) line.textContent = text;
  }

  /* What is known by: parts by their name, figures by their plot. */
  function key(element) {
    const plot = element.querySelector(":scope > .plot");
    return plot ? plot.id : element.dataset.part || element.id || element.tagName;
  }

  function held(element) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(element, true);
  }

  /* Replaces a part and keeps what its reader did to it: opened, scrolled, focused. */
  function replacePart(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (held(old)) { skipped = true; return; }  // someone is copying from it: when the selection goes
    const open = old.querySelector("details")?.open;
    const scrolled = old.querySelector(".scroll")?.scrollLeft;
    const focused = [...old.querySelectorAll("a, summary, [tabindex]")].indexOf(document.activeElement);
    const made = document.importNode(fresh, true);
    old.replaceWith(made);
    const details = made.querySelector("details");
    if (details && open !== undefined) details.open = open;
    const scroll = made.querySelector(".scroll");
    if (scroll && scrolled) scroll.scrollLeft = scrolled;
    if (focused >= 0) made.querySelectorAll("a, summary, [tabindex]")[focused]?.focus({ preventScroll: true });
  }

  function replaceChoices(old, fresh) {
    if (!old || !fresh || old.isEqualNode(fresh)) return;
    const chosen = old.selectedOptions[0]?.textContent;
    old.replaceChildren(...[...fresh.options].map((one) => document.importNode(one, true)));
    const same = [...old.options].find((one) => one.textContent === chosen);
    if (same) same.selected = true;
  }

  function replaceFigure(old, fresh) {
    replacePart(old.querySelector("figcaption"), fresh.querySelector("figcaption"));
    const [plot, next] = [old.querySelector(".plot"), fresh.querySelector(".plot")];
    const [data, other] = [old.querySelector("script"), fresh.querySelector("script")];
    plot.setAttribute("aria-label", next.getAttribute("aria-label"));
    if (data.textContent === other.textContent) return;
    const chooser = fresh.querySelector(".choose");
    if (chooser && !old.querySelector(".choose")) plot.before(document.importNode(chooser, true));
    else replaceChoices(old.querySelector("select"), fresh.querySelector("select"));
    plot.style.height = next.style.height;
    data.textContent = other.textContent;
    if (plot.dataset.drawn) window.laptime.draw(plot);
  }

  function addFigures(element) {
    for (const plot of element.querySelectorAll(".plot")) window.laptime.draw(plot);
  }

  /* Makes the children of `old` those of `fresh`, in their order. */
  function merge(old, fresh, change) {
    const there = new Map([...old.children].map((one) => [key(one), one]));
    let before = null;
    for (const child of fresh.children) {
      const known = there.get(key(child));
      there.delete(key(child));
      if (known) {
        change(known, child);
        before = [...old.children].find((one) => key(one) === key(child));
      } else {
        const made = document.importNode(child, true);
        if (before) before.after(made); else old.prepend(made);
        addFigures(made);
        before = made;
      }
    }
    for (const gone of there.values()) gone.remove();
  }

  function changeSection(old, fresh) {
    if (old.tagName !== "SECTION") { replacePart(old, fresh); return; }
    merge(old, fresh, (one, other) => {
      if (one.tagName === "FIGURE") replaceFigure(one, other); else replacePart(one, other);
    });
  }

  function update(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const main = fresh.getElementById("main");
    if (!main) return;
    skipped = false;
    replacePart(document.querySelector(".contents"), fresh.querySelector(".contents"));
    merge(document.getElementById("main"), main, changeSection);
    document.title = fresh.title;
    over = !fresh.getElementById("live")?.dataset.seal;
    waits = skipped ? text : null;
  }

  document.addEventListener("selectionchange", () => {
    if (waits === null || !document.getSelection().isCollapsed) return;
    update(waits);
    say();
  });

  async function ask() {
    try {
      const answer = await fetch(location.pathname, { headers: { "If-None-Match": seal }, cache: "no-store" });
      if (answer.status === 200) {
        update(await answer.text());
        seal = answer.headers.get("ETag") || "";
      } else if (answer.status !== 304) {
        throw new Error(String(answer.status));
      }
      answers = true;
      updated = Date.now();
    } catch (_) {
      answers = false;
    }
    say();
    if (over) clearInterval(clock);
    else setTimeout(ask, document.hidden ? 5 * EVERY_MS : EVERY_MS);
  }

  const clock = setInterval(say, 1000);
  setTimeout(ask, EVERY_MS);
})();
