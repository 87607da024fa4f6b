"use strict";
/* The answer of the prediction page: one JSON document as tiles, a table and figures.
   Names come from runs and files: they are only ever set as text. */
(() => {
  const MOST_LAYERS = 30, GIB = 2 ** 30;
  /* The palette of views/palette.py, as variables of the style. */
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = { forward: css("--forward"), backward: css("--backward"), update: css("--update"),
                    asItIs: css("--idle"), error: css("--host"), line: css("--unexplained") };

  /* --- text ----------------------------------------------------------------------------------------- */

  /* A name as Plotly shows it letter by letter, as figures/figure.py does: what looks like markup stays text. */
  function label(name) {
    const line = String(name).replace(/[\p{C}\u2028\u2029]/gu, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
    return line.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function short(name, longest = 34) {
    const text = String(name);
    return label(text.length <= longest ? text : "…" + text.slice(1 - longest));
  }

  function digits(value, count = 3) {
    if (!Number.isFinite(value)) return "-";
    const places = value ? Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value)))) : 0;
    return value.toLocaleString("en", { minimumFractionDigits: Math.min(places, 6), maximumFractionDigits: Math.min(places, 6) });
  }

  const known = (value, write) => (value === null || value === undefined ? "-" : write(value));
  const ms = (seconds) => known(seconds, (s) => digits(s * 1e3));
  const gib = (bytes) => known(bytes, (b) => digits(b / GIB));
  const dollars = (value) => known(value, (d) => "$" + (d < 1000 ? d.toFixed(2) : Math.round(d).toLocaleString("en")));
  const between = (pair, write) => known(pair, ([low, high]) => `${write(low)} – ${write(high)}`);

  function make(tag, text, more = {}) {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(more)) {
      if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    return element;
  }

  /* A sentence as text; what stands between backticks is set as code. */
  function prose(tag, text) {
    const element = make(tag);
    element.append(...String(text).split("`").map((part, at) => (at % 2 ? make("code", part) : part)));
    return element;
  }

  /* --- the answer ----------------------------------------------------------------------------------- */

  /* `choose` is called with the device whose details are wanted. */
  async function show(found, choose) {
    const row = found.rows.find((one) => one.device === found.shown);
    const before = new Map((found.baseline ? found.baseline.rows : []).map((one) => [one.device, one]));
    document.getElementById("shown-title").textContent = row ? row.title : "No device";
    tiles(row, row && before.get(row.device));
    table(found, before, choose);
    notes(found, row);
    const kept = `${found.kind}:${found.name}:${found.shown}`;
    const drawn = {
      devices: devicesFigure(found, before), layers: layersFigure(found), memory: memoryFigure(found, row),
      batches: curve(found, "by_batch", "batch"), gpus: curve(found, "by_gpus", "gpus"),
    };
    for (const [name, figure] of Object.entries(drawn)) await draw(name, figure, kept);
  }

  async function draw(name, figure, kept) {
    const element = document.getElementById("plot-" + name);
    element.closest("figure").hidden = figure === null;
    if (figure === null) return;
    figure.layout.uirevision = kept;
    element.style.height = `${figure.layout.height}px`;
    document.getElementById("data-" + name).textContent = JSON.stringify({ choices: [], ...figure });
    await window.laptime.draw(element);
  }

  function change(now, before) {
    if (!before || !before.step_s) return "";
    const ratio = now.step_s / before.step_s - 1;
    return `${ratio > 0 ? "+" : ratio < 0 ? "−" : ""}${Math.abs(ratio * 100).toFixed(1)} %`;
  }

  function tiles(row, before) {
    const list = document.getElementById("tiles");
    list.replaceChildren();
    if (!row || row.error) return;
    const add = (name, value, note, tone = "") => {
      const tile = make("div", null, { class: `tile ${tone}` });
      tile.append(make("dt", name), make("dd", value));
      if (note) tile.append(make("dd", note, { class: "note" }));
      list.append(tile);
    };
    const was = before ? `as it is ${ms(before.step_s)} ms: ${change(row, before)}` : "";
    add("a step", `${ms(row.step_s)} ms`, `${between(row.interval_s, ms)} ms`);
    if (before) add("as imagined", change(row, before), was, row.step_s <= before.step_s ? "good" : "bad");
    add("samples a second", known(row.samples_per_s, (rate) => digits(rate)), "");
    if (row.hours !== null) add("the training", `${digits(row.hours)} h`, `${between(row.hours_interval, (h) => digits(h))} h`);
    if (row.dollars !== null) add("its cost", dollars(row.dollars), between(row.dollars_interval, dollars));
    const size = row.device_memory_bytes ? `of ${gib(row.device_memory_bytes)} GiB` : "";
    add("memory", `${gib(row.reserved_memory_bytes)} GiB`, size, row.fits === false ? "bad" : "");
  }

  const COLUMNS = [
    ["step ms", (row) => ms(row.step_s)],
    ["±", (row) => `${Math.round((row.interval_s[1] / row.step_s - 1) * 100)} %`],
    ["hours", (row) => known(row.hours, (h) => digits(h)), (row) => row.hours !== null],
    ["cost", (row) => dollars(row.dollars), (row) => row.dollars !== null],
    ["GiB", (row) => gib(row.reserved_memory_bytes)],
    ["largest batch", (row) => known(row.largest_batch, (n) => n.toLocaleString("en"))],
    ["samples/s", (row) => known(row.samples_per_s, (rate) => digits(rate))],
  ];

  function table(found, before, choose) {
    const made = found.rows.filter((row) => !row.error);
    const columns = COLUMNS.filter(([, , has]) => !has || made.some(has));
    const head = make("tr");
    head.append(make("th", "device", { scope: "col" }));
    if (found.baseline) head.append(make("th", "change", { scope: "col", class: "number" }));
    for (const [title] of columns) head.append(make("th", title, { scope: "col", class: "number" }));
    for (const title of ["fits", "what holds it up", "how it is known"]) head.append(make("th", title, { scope: "col" }));
    const body = found.rows.map((row) => tableRow(found, row, columns, before, choose));
    const focused = document.activeElement?.closest?.("#devices")
      ? document.activeElement.closest("tr")?.dataset.device : undefined;
    document.querySelector("#devices thead").replaceChildren(head);
    document.querySelector("#devices tbody").replaceChildren(...body);
    if (focused !== undefined) body.find((one) => one.dataset.device === focused)?.querySelector("button")?.focus();
  }

  function tableRow(found, row, columns, before, choose) {
    const line = make("tr", null, { "data-device": row.device, "aria-current": row.device === found.shown && "true" });
    const name = make("td");
    line.append(name);
    if (row.error) {
      name.textContent = row.title || row.device;
      line.append(make("td", row.error, { colspan: columns.length + 3 + (found.baseline ? 1 : 0), class: "reason" }));
      return line;
    }
    const button = make("button", row.title, { type: "button", "aria-pressed": String(row.device === found.shown) });
    button.addEventListener("click", () => choose(row.device));
    name.append(button);
    if (found.baseline) line.append(make("td", change(row, before.get(row.device)), { class: "number" }));
    for (const [, write] of columns) line.append(make("td", write(row), { class: "number" }));
    const fits = row.fits === null ? "-" : row.fits ? "yes" : "no";
    line.append(make("td", fits, { class: row.fits === false ? "no" : undefined }));
    const words = make("td", null, { class: "words" });
    words.append(make("div", row.bottleneck, { class: "clamp", title: row.bottleneck }));
    line.append(words, how(row));
    return line;
  }

  function how(row) {
    const cell = make("td");
    const details = make("details");
    details.append(make("summary", row.calibrated ? "calibrated" : "data sheet"));
    const list = make("ul");
    const covers = Object.entries(row.uncovered || {}).map(([name, share]) => `not covered: ${name}, ${digits(share * 100, 2)} % of the bytes`);
    for (const note of [row.basis, ...row.notes, ...covers]) list.append(prose("li", note));
    details.append(list);
    cell.append(details);
    return cell;
  }

  function notes(found, row) {
    const told = row && !row.error ? [`Known from: ${row.basis}.`, ...row.notes] : [];
    const lines = [...told, ...found.data_flow].map((note) => prose("li", note));
    document.getElementById("notes").replaceChildren(...lines);
  }

  /* --- figures -------------------------------------------------------------------------------------- */

  const axis = (text, more = {}) => ({ title: { text }, ...more });

  function devicesFigure(found, before) {
    const rows = found.rows.filter((row) => !row.error).reverse();  // the first comes to stand on top
    if (!rows.length) return null;
    const hours = rows.every((row) => row.hours !== null);
    const value = (row) => (hours ? row.hours : row.step_s * 1e3);
    const ends = (row) => (hours ? row.hours_interval : row.interval_s.map((s) => s * 1e3));
    const unit = hours ? "hours of the training" : "ms of a step";
    const data = [];
    if (found.baseline) {
      const old = rows.map((row) => before.get(row.device));
      data.push({ type: "bar", orientation: "h", name: "as it is", y: rows.map((row) => short(row.title)),
        x: old.map((row) => (row ? value(row) : null)), marker: { color: COLOURS.asItIs }, hoverinfo: "x+name" });
    }
    data.push({
      type: "bar", orientation: "h", name: found.baseline ? "as imagined" : "predicted",
      y: rows.map((row) => short(row.title)), x: rows.map(value), hoverinfo: "x+y",
      marker: { color: rows.map((row) => (row.device === found.shown ? COLOURS.backward : COLOURS.forward)),
                opacity: rows.map((row) => (row.fits === false ? 0.35 : 1)) },
      error_x: { type: "data", symmetric: false, thickness: 1.2, color: COLOURS.error,
        array: rows.map((row) => ends(row)[1] - value(row)), arrayminus: rows.map((row) => value(row) - ends(row)[0]) },
    });
    return { data, layout: { height: 90 + rows.length * (found.baseline ? 34 : 26), barmode: "group",
      xaxis: axis(unit, { rangemode: "tozero" }), yaxis: { automargin: true }, showlegend: Boolean(found.baseline),
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, margin: { t: 34 } } };
  }

  function layersFigure(found) {
    if (!found.layers.length) return null;
    const largest = [...found.layers].sort((a, b) => b.total_s - a.total_s);
    const rows = largest.slice(0, MOST_LAYERS);
    const rest = largest.slice(MOST_LAYERS);
    if (rest.length) {
      const sum = (key) => rest.reduce((whole, one) => whole + one[key], 0);
      rows.push({ name: `${rest.length} others`, forward_s: sum("forward_s"), backward_s: sum("backward_s"), update_s: sum("update_s") });
    }
    rows.reverse();
    const data = ["forward", "backward", "update"].map((phase) => ({
      type: "bar", orientation: "h", name: phase, marker: { color: COLOURS[phase] }, hoverinfo: "x+name",
      y: rows.map((_, at) => at), x: rows.map((one) => one[`${phase}_s`] * 1e3) }));
    return { data, layout: { height: 90 + rows.length * 19, barmode: "stack", xaxis: axis("ms of a step"), bargap: 0.25,
      yaxis: { automargin: true, tickvals: rows.map((_, at) => at), ticktext: rows.map((one) => short(one.name)) },
      legend: { orientation: "h", y: 1.01, yanchor: "bottom" }, margin: { t: 34 } } };
  }

  function memoryFigure(found, row) {
    const line = found.memory_timeline;
    if (!line) return null;
    const end = line.end_s * 1e3;
    const data = [{
      type: "scatter", mode: "lines", name: "alive", line: { shape: "hv", width: 1.6, color: COLOURS.forward }, fill: "tozeroy",
      x: [...line.seconds.map((s) => s * 1e3), end], y: [...line.bytes, line.bytes[0]].map((b) => b / GIB),
      text: [...line.layer.map((name, at) => `${label(name)}, ${line.phase[at]}`), "end"], hoverinfo: "x+y+text" }];
    const size = row && row.device_memory_bytes / GIB;
    const most = Math.max(...data[0].y);
    if (size && size < most * 3) {  // further up it would press the line to the ground
      data.push({ type: "scatter", mode: "lines", name: "the device's memory", x: [0, end], y: [size, size],
        line: { dash: "dash", color: COLOURS.line, width: 1.4 } });
    }
    return { data, layout: { height: 320, xaxis: axis("ms of a step"), yaxis: axis("GiB", { rangemode: "tozero" }),
      showlegend: data.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } } };
  }

  function curve(found, key, by) {
    const points = found[key];
    if (points.length < 2) return null;
    const title = by === "batch" ? "samples of one GPU in a step" : "GPUs";
    const line = (rows, name, colour) => ({
      type: "scatter", mode: "lines+markers", name, x: rows.map((one) => one[by]), y: rows.map((one) => one.samples_per_s),
      line: { color: colour, width: 1.8 },
      marker: { size: 9, color: colour, symbol: rows.map((one) => (one.fits === false ? "circle-open" : "circle")) },
      text: rows.map((one) => `${ms(one.step_s)} ms a step, ${gib(one.reserved_memory_bytes)} GiB`), hoverinfo: "x+y+text+name",
      error_y: { type: "data", symmetric: false, thickness: 1, color: COLOURS.asItIs,
        array: rows.map((one) => one.samples_per_s * (one.step_s / one.interval_s[0] - 1)),
        arrayminus: rows.map((one) => one.samples_per_s * (1 - one.step_s / one.interval_s[1])) } });
    const data = [line(points, found.baseline ? "as imagined" : "predicted", COLOURS.forward)];
    if (found.baseline && found.baseline[key].length) {
      const old = line(found.baseline[key], "as it is", COLOURS.asItIs);
      delete old.error_y;
      data.unshift(old);
    }
    if (by === "gpus") {
      data.push({ type: "scatter", mode: "lines", name: "as many times one", hoverinfo: "skip", line: { dash: "dash", color: COLOURS.asItIs },
        x: points.map((one) => one.gpus), y: points.map((one) => points[0].samples_per_s * one.gpus / points[0].gpus) });
    }
    return { data, layout: { height: 320, xaxis: axis(title, { type: "log", tickvals: points.map((one) => one[by]), ticktext: points.map((one) => String(one[by])) }),
      yaxis: axis("samples a second", { rangemode: "tozero" }), showlegend: data.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" } } };
  }

  window.laptime.answer = { digits, known, make, show };
})();
