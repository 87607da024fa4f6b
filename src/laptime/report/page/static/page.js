"use strict";
/* Draws the figures of a page one after the other, lets their selectors choose, and follows light and dark. */
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout, width) {
    const ink = css("--ink"), grid = css("--grid"), line = css("--line");
    const narrow = width < 620;
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
    const layout = { uirevision: String(chosen(name)), ...themed(figure.layout, element.clientWidth) };
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
  if (button) button.addEventListener("click", toggle);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "t" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) toggle();
  });

  window.laptime = { draw, drawAll, themed, config };
  drawAll();
})();
