"use strict";
/* Draws the figures of a page one after the other, lets their selectors choose, and follows light and dark. */
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout, width) {
    const ink = css("--ink"), grid = css("--grid"), line = css("--line");
    const narrow = width < NARROW;
    const found = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12.5, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: css("--card"), bordercolor: line, font: { color: ink }, align: "left", namelength: 60 },
      margin: { l: 58, r: 14, t: 14, b: 46, ...(layout.margin || {}) },
      legend: narrow
        ? { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...(layout.legend || {}) }
        : { y: 1, ...(layout.legend || {}) },
    };
    for (const key of Object.keys(found)) {
      if (/^[xy]axis\d*$/.test(key)) {
        found[key] = { gridcolor: grid, zerolinecolor: line, linecolor: line, ...found[key] };
      }
    }
    return found;
  }

  // On a phone, names as long as they may be would leave their bars a tenth of the width.
  const NARROW = 620, LETTERS = 16, ENTRIES = 6, ENTRY = 19;

  function shortened(name) {
    // Names come as `_letters` of figure.py writes them: an entity is one letter, and must not be cut in two.
    const text = name.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&#123;/g, "{").replace(/&amp;/g, "&");
    const letters = [...text];
    if (letters.length <= LETTERS) return name;
    const end = letters.slice(1 - LETTERS).join("");  // which tells more than the beginning
    return "…" + end.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "%&#123;");
  }

  function fitted(data, layout, width) {
    if (width >= NARROW) return layout;
    const found = { ...layout };
    if (found.yaxis && found.yaxis.type === "category") {
      const names = [...new Set(data.flatMap((trace) => (Array.isArray(trace.y) ? trace.y : [])))];
      if (names.some((name) => name.length > LETTERS)) {
        found.yaxis = { ...found.yaxis, tickmode: "array", tickvals: names, ticktext: names.map(shortened) };
      }
    }
    const entries = data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (entries > ENTRIES && found.showlegend !== false) {  // below the figure, which grows by its length
      const more = entries * ENTRY;
      const drawn = found.height - found.margin.t - found.margin.b;
      found.legend = { ...found.legend, orientation: "v", x: 0, y: -64 / drawn, yanchor: "top" };
      found.margin = { ...found.margin, b: found.margin.b + more };
      found.height += more;
    }
    return found;
  }

  const config = {
    responsive: true, displaylogo: false,
    showSendToCloud: false, plotlyServerURL: "",  // Plotly's own default offers to upload the figure
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  function read(name) {
    return JSON.parse(document.getElementById("data-" + name).textContent);
  }

  function choose(figure, place) {
    const choice = figure.choices[place];
    if (!choice) return figure;
    // Only these go to Plotly: of a thousand layers, the others would take half a second to be left out.
    figure.data = choice.shows.map((at) => ({ ...figure.data[at], visible: true }));
    figure.layout = { ...figure.layout, ...choice.layout };
    return figure;
  }

  function chosen(name) {
    const select = document.querySelector(`select[data-chooses="${CSS.escape(name)}"]`);
    return select ? Number(select.value) : 0;
  }

  // In the dashboard Plotly is fetched and compiled while the server still makes the page.
  const script = document.getElementById("plotly");
  const ready = window.Plotly || !script ? Promise.resolve()
    : new Promise((done) => { script.addEventListener("load", done); });

  async function draw(element) {
    await ready;
    const name = element.dataset.figure;
    const figure = choose(read(name), chosen(name));
    // What a reader zoomed stays when the figure is drawn again, until another choice shows something else.
    const width = element.clientWidth;
    const layout = { uirevision: String(chosen(name)), ...fitted(figure.data, themed(figure.layout, width), width) };
    element.style.height = layout.height + "px";
    await Plotly.react(element, figure.data, layout, config);
    element.dataset.drawn = "yes";
  }

  async function drawAll() {
    for (const element of document.querySelectorAll(".plot")) {
      await draw(element);
      await new Promise((done) => setTimeout(done, 0));  // a click meanwhile is answered between two figures
    }
    document.body.dataset.drawn = "all";
  }

  document.addEventListener("change", (event) => {
    const name = event.target.dataset && event.target.dataset.chooses;
    if (name) draw(document.getElementById("plot-" + name));
  });

  function theme(wanted) {
    document.documentElement.dataset.theme = wanted;
    try { localStorage.setItem("laptime-theme", wanted); } catch (_) { /* a file may not store */ }
    drawAll();
  }

  function toggle() {
    const now = document.documentElement.dataset.theme
      || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    theme(now === "dark" ? "light" : "dark");
  }

  try {
    const kept = localStorage.getItem("laptime-theme");
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch (_) { /* a file may not store */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const button = document.getElementById("theme");
  if (button) {
    button.addEventListener("click", toggle);
    if (matchMedia("(hover: hover)").matches) {  // who has a mouse has a keyboard
      button.append(" ", Object.assign(document.createElement("kbd"), { textContent: "t" }));
    }
  }
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "t" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) toggle();
  });

  window.laptime = { draw, drawAll, themed, config };
  drawAll();
})();
