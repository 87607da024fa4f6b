"use strict";
/* The plan page's form: names of networks come when torch is imported; a search says that it is under way. */
(() => {
  const form = document.getElementById("question");
  const told = document.getElementById("told");
  const names = document.getElementById("networks");

  fetch("/api/networks").then((answer) => answer.json()).then(({ networks }) => {
    document.getElementById("without-torch").hidden = networks !== null;
    names.replaceChildren(...(networks || []).map((name) => Object.assign(document.createElement("option"), { value: name })));
  }).catch(() => {});  // the name can be typed

  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;  // a short address
    told.textContent = "searching …";
    document.getElementById("answer").setAttribute("aria-busy", "true");
  });
  addEventListener("pageshow", () => { for (const field of form.elements) field.disabled = false; });
})();
