"use strict";
/* The prediction page's question: a form and sliders. What is asked stands in the address, and the answer of an
   older question is dropped. */
(() => {
  const { digits, known, make, show } = window.laptime.answer;
  const form = document.getElementById("question");
  const place = document.getElementById("answer");
  const told = document.getElementById("told");
  const WAIT_MS = 160;
  const FIELDS = ["batch", "precision", "samples", "epochs", "price_per_hour", "sort"];
  const FACTORS = ["compute", "bandwidth", "link", "host"];
  const KINDS = ["network", "run", "workload"];
  const FIRST = 3;  // runs that are tried before a page opens with an error
  const NO_LIMIT = 6.05;  // of the loader's slider: to its right nothing is waited for
  let shown = "";

  /* --- the question --------------------------------------------------------------------------------- */

  const slides = new Map([...form.querySelectorAll("[data-slides]")].map((one) => [one.dataset.slides, one]));

  function slid(name) {
    const at = Number(slides.get(name).value);
    if (name === "gpus") return at;
    if (name === "loader") return at > NO_LIMIT ? null : Number((10 ** at).toPrecision(3));
    if (name === "batch") return 2 ** at;
    return at === 0 ? 1 : Number((2 ** at).toPrecision(3));
  }

  function slideTo(name, value) {
    const slide = slides.get(name);
    if (name === "gpus") slide.value = value;
    else if (name === "loader") slide.value = value === null ? slide.max : Math.log10(value);
    else slide.value = Math.log2(value);
  }

  function sayAll(ownBatch) {
    for (const [name, slide] of slides) {
      const value = slid(name);
      let text = `× ${value}`;
      let moved = value !== 1;
      if (name === "gpus") text = String(value);
      if (name === "loader") { moved = value !== null; text = moved ? `${digits(value)} a second` : "as fast as needed"; }
      if (name === "batch") {
        const given = form.elements.batch.value;
        moved = given !== "";
        text = given || known(ownBatch, String);
      }
      const output = document.getElementById("told-" + name);
      if (output.textContent !== text) output.textContent = text;
      slide.setAttribute("aria-valuetext", text);
      slide.closest("label").classList.toggle("moved", moved);
    }
    const devices = ticked();
    document.getElementById("devices-chosen").textContent =
      devices.length ? `Devices: ${devices.length} chosen` : "Devices: the usual ones";
  }

  function ticked() {
    return [...form.querySelectorAll("input[name=device]:checked")].map((one) => one.value);
  }

  function subject() {
    const value = form.elements.subject.value;
    const at = value.indexOf(":");
    return at < 0 ? null : [value.slice(0, at), value.slice(at + 1)];
  }

  function question() {
    const chosen = subject();
    if (!chosen) return null;
    const query = new URLSearchParams([chosen]);
    for (const name of FIELDS) {
      const field = form.elements[name];
      if (field.value !== "" && !field.disabled) query.set(name, field.value);
    }
    if (ticked().length) query.set("devices", ticked().join(","));
    if (slid("gpus") !== 1) query.set("gpus", slid("gpus"));
    for (const name of FACTORS) if (slid(name) !== 1) query.set(name, slid(name));
    if (slid("loader") !== null) query.set("loader", slid("loader"));
    if (shown) query.set("shown", shown);
    return query;
  }

  /* The fields as an address says; a run or network that the list does not have yet is added to it. */
  function restore(query) {
    for (const kind of KINDS) {
      const name = query.get(kind);
      if (!name) continue;
      const value = `${kind}:${name}`;
      const select = form.elements.subject;
      if (![...select.options].some((one) => one.value === value)) {
        const group = kind === "network" ? document.getElementById("networks") : select;
        group.append(make("option", name, { value }));
      }
      select.value = value;
    }
    for (const name of FIELDS) if (query.get(name)) form.elements[name].value = query.get(name);
    for (const name of [...FACTORS, "gpus", "loader", "batch"]) {
      const value = Number(query.get(name));
      if (query.get(name) && value > 0) slideTo(name, value);
    }
    const devices = new Set((query.get("devices") || "").split(","));
    for (const one of form.querySelectorAll("input[name=device]")) one.checked = devices.has(one.value);
    shown = query.get("shown") || "";
  }

  function suit() {
    const chosen = subject();
    form.elements.precision.disabled = !chosen || chosen[0] !== "network";  // a step that was read has its own
  }

  /* --- asking --------------------------------------------------------------------------------------- */

  let waits, under, asked = 0;

  function say(text, wrong = false) {
    told.textContent = text;
    told.classList.toggle("wrong", wrong);
  }

  /* Whether there was an answer. */
  async function ask(query = question()) {
    if (!query) { say("Choose a network, a run or a workload."); return false; }
    const mine = ++asked;
    if (under) under.abort();
    under = new AbortController();
    place.setAttribute("aria-busy", "true");
    history.replaceState(null, "", "/predict?" + query);
    const slow = setTimeout(() => { if (mine === asked) say("asking …"); }, 400);
    try {
      const answer = await fetch("/api/predict?" + query, { signal: under.signal });
      const found = await answer.json();
      if (mine !== asked) return true;  // another question was asked meanwhile
      if (!answer.ok) { say(found.error || "the server cannot answer this", true); return false; }
      say(sentence(found));
      sayAll(found.question.batch);
      if (!form.elements.batch.value) slideTo("batch", found.question.batch);
      place.classList.remove("empty");
      await show(found, (device) => { shown = device; ask(); });
      document.body.dataset.answered = String(mine);
      return true;
    } catch (error) {
      if (mine === asked && error.name !== "AbortError") say("the server does not answer; is `laptime serve` still running?", true);
      return true;  // another subject would do no better
    } finally {
      clearTimeout(slow);
      if (mine === asked) place.setAttribute("aria-busy", "false");
    }
  }

  function askSoon() { clearTimeout(waits); waits = setTimeout(ask, WAIT_MS); }

  function sentence(found) {
    const one = found.question;
    const gpus = one.gpus > 1 ? ` on ${one.gpus} GPUs each` : "";
    return `${found.name}: a ${found.mode} step of ${one.batch} in ${one.precision}${gpus}`;
  }

  /* --- events --------------------------------------------------------------------------------------- */

  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("input", (event) => {
    const name = event.target.dataset.slides;
    if (name === "batch") form.elements.batch.value = slid("batch");
    if (event.target.name === "batch" && event.target.value > 0) slideTo("batch", event.target.value);
    if (event.target.name === "subject") { shown = ""; suit(); }
    sayAll();
    askSoon();
  });
  document.getElementById("as-it-is").addEventListener("click", () => {
    for (const name of FACTORS) slideTo(name, 1);
    slideTo("gpus", 1);
    slideTo("loader", null);
    form.elements.batch.value = "";
    sayAll();
    ask();
  });
  document.getElementById("usual").addEventListener("click", () => {
    for (const one of form.querySelectorAll("input[name=device]")) one.checked = false;
    sayAll();
    ask();
  });

  async function listNetworks() {
    const group = document.getElementById("networks");
    try {
      const { networks } = await (await fetch("/api/networks")).json();
      const select = form.elements.subject;
      const value = select.value;
      if (networks === null) {
        document.getElementById("without-torch").hidden = false;
        group.remove();
      } else {
        group.replaceChildren(...networks.map((name) => make("option", name, { value: "network:" + name })));
      }
      if (!value) return;
      select.value = value;
      if (!select.value) {  // the address has a network that is none: it stays, and the server says so
        select.append(make("option", value.slice(value.indexOf(":") + 1), { value }));
        select.value = value;
      }
    } catch (_) { /* runs and workloads are there all the same */ }
  }

  /* The first run or workload that has an answer, the newest run first; resnet50 where none of a few has one. */
  async function begin() {
    const options = () => [...form.elements.subject.options].filter((one) => !one.disabled);
    const take = (one) => { form.elements.subject.value = one.value; suit(); return ask(); };
    for (const one of options().slice(0, FIRST)) if (await take(one)) return;
    await listed;
    const any = options().find((one) => one.value === "network:resnet50") || options()[0];
    if (any) take(any);
    else say("Nothing can be predicted here: record a run, or save a workload with `laptime predict NETWORK --save FILE`.");
  }

  const address = new URLSearchParams(location.search);
  restore(address);
  suit();
  sayAll();
  const listed = listNetworks();
  if (KINDS.some((kind) => address.get(kind))) ask(address);  // as it stands there: what a field cannot hold, the server tells
  else begin();
})();
