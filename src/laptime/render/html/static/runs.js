"use strict";
/* The list of runs: searches while one types, fills in what costs more to read, and can be used by keys alone. */
(() => {
  const search = document.getElementById("search");
  const chosen = document.getElementById("chosen");
  const WAIT_MS = 150, AGAIN_MS = 5000, AT_ONCE = 24;
  if (!search || !chosen) {  // no run yet: the first one brings the list
    setInterval(async () => {
      if (document.hidden) return;
      try {
        const answer = await fetch("/", { cache: "no-store" });
        if (answer.ok && (await answer.text()).includes('id="chosen"')) location.reload();
      } catch (_) { /* the server is gone */ }
    }, AGAIN_MS);
    return;
  }
  const box = search.elements.q;
  const button = document.getElementById("compare");
  const ticked = new Set(history.state?.ticked);  // which Back, and loading anew, bring again
  const filled = new Map();

  /* --- ticking ------------------------------------------------------------------------------------ */

  function boxes() { return [...chosen.querySelectorAll("input[name=run]")]; }

  function showTicks() {
    for (const one of boxes()) one.checked = ticked.has(one.value);
    button.disabled = ticked.size < 2;
    button.textContent = ticked.size < 2 ? "compare: tick two runs or more" : `compare ${ticked.size} runs`;
  }

  chosen.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    if (event.target.checked) ticked.add(event.target.value); else ticked.delete(event.target.value);
    keep(location.href);
    showTicks();
  });

  function keep(place) { history.replaceState({ ticked: [...ticked] }, "", place); }

  chosen.addEventListener("submit", (event) => {
    event.preventDefault();  // in the order of ticking: the first is the baseline
    const query = new URLSearchParams([...ticked].map((name) => ["run", name]));
    location.assign("/compare?" + query);
  });

  /* --- searching ---------------------------------------------------------------------------------- */

  let asked = 0;
  let seal = "";
  let waits = 0, under = 0;

  function address() {
    const query = new URLSearchParams(new FormData(search));
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    return "/?" + query;
  }

  async function show(place) {
    const mine = ++asked;
    under += 1;
    try {
      const answer = await fetch(place, { headers: seal ? { "If-None-Match": seal } : {}, cache: "no-store" });
      if (mine !== asked || answer.status === 304 || !answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (mine !== asked || !fresh.getElementById("found")) return;
      seal = answer.headers.get("ETag") || "";
      const focused = document.activeElement;
      const at = focused?.closest?.("tr")?.dataset.run;
      for (const id of ["found", "count"]) {
        document.getElementById(id).replaceWith(document.importNode(fresh.getElementById(id), true));
      }
      for (const name of ["sort", "order"]) search.elements[name].value = fresh.getElementById("search").elements[name].value;
      keep(place);
      showTicks();
      watch();
      if (at !== undefined) [...rows()].find((one) => one.dataset.run === at)?.querySelector(focused.tagName === "INPUT" ? "input" : "a")?.focus();
    } catch (_) { /* the server is gone; what is shown stays */ } finally { under -= 1; }
  }

  search.addEventListener("submit", (event) => { event.preventDefault(); show(address()); });
  search.addEventListener("input", () => {
    clearTimeout(waits);
    waits = setTimeout(() => { waits = 0; show(address()); }, WAIT_MS);
  });
  chosen.addEventListener("click", (event) => {
    const link = event.target.closest("thead a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(link.getAttribute("href"));
  });

  setInterval(() => {
    const free = !waits && !under && document.getSelection().isCollapsed;  // nobody searches or copies
    if (!document.hidden && free) show(location.pathname + location.search);
  }, AGAIN_MS);

  /* --- keys --------------------------------------------------------------------------------------- */

  function rows() { return chosen.querySelectorAll("tbody tr"); }

  function move(by) {
    const all = [...rows()];
    const now = all.indexOf(document.activeElement?.closest?.("tr"));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + by))];
    next?.querySelector("a")?.focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "/" && !typing) { event.preventDefault(); box.focus(); box.select(); }
    else if (event.key === "ArrowDown" && (!typing || event.target === box)) { event.preventDefault(); move(1); }
    else if (event.key === "ArrowUp" && !typing) { event.preventDefault(); move(-1); }
    else if (event.key === " " && event.target.closest?.("tbody a")) {
      event.preventDefault();
      event.target.closest("tr").querySelector("input")?.click();
    }
  });

  /* --- numbers that need a run's rows: only of those in view ---------------------------------------- */

  const wanted = new Set();
  let asking = false;

  function fill(row) {
    const found = filled.get(row.dataset.run);
    if (!found) return;
    for (const cell of row.querySelectorAll("[data-fill]")) {
      const text = found[cell.dataset.fill];
      if (text && (/^-?$/.test(cell.textContent) || "running" in row.dataset)) cell.textContent = text;
    }
  }

  async function askNumbers() {
    if (asking || !wanted.size) return;
    asking = true;
    const names = [...wanted].slice(0, AT_ONCE);
    for (const name of names) wanted.delete(name);
    try {
      const answer = await fetch("/api/results?" + new URLSearchParams(names.map((name) => ["run", name])));
      if (answer.ok) {
        for (const [name, found] of Object.entries(await answer.json())) filled.set(name, found);
        for (const row of rows()) fill(row);
      }
    } catch (_) { /* they stay empty */ }
    asking = false;
    askNumbers();
  }

  const seen = new IntersectionObserver((changes) => {
    for (const { isIntersecting, target } of changes) {
      const name = target.dataset.run;
      if (!isIntersecting) { wanted.delete(name); continue; }  // scrolled past before it was asked for
      if (filled.has(name) && !("running" in target.dataset)) fill(target); else wanted.add(name);
    }
    askNumbers();
  });

  function watch() {
    seen.disconnect();
    for (const row of rows()) if (row.dataset.run !== undefined) { fill(row); seen.observe(row); }
  }

  showTicks();
  watch();
})();
