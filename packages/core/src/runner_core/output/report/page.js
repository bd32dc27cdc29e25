"use strict";
// A click on a picture shows it alone, a second click in its own pixels.
const box = document.createElement("dialog");
box.className = "zoom";
document.body.append(box);
document.addEventListener("click", (event) => {
  const picture = event.target.closest("figure img");
  if (!picture) return;
  if (picture.parentNode === box.firstChild) return void box.classList.toggle("full");
  const copy = picture.closest("figure").cloneNode(true);
  box.replaceChildren(copy);
  box.classList.remove("full");
  box.showModal();
});
box.addEventListener("click", (event) => event.target.tagName !== "IMG" && box.close());

// A pointer over a chart shows the values at the nearest step.
const tip = document.createElement("div");
tip.className = "tip";
document.body.append(tip);
function nearest(line, x) {
  const points = [...line.points];
  let best = 0;
  points.forEach((point, i) => { if (Math.abs(point.x - x) < Math.abs(points[best].x - x)) best = i; });
  return { point: points[best], values: line.dataset.values.split(" ")[best].split(",") };
}
function show(event) {
  const chart = event.target.closest && event.target.closest("svg.chart");
  tip.style.display = "none";
  document.querySelectorAll(".at").forEach((mark) => mark.remove());
  if (!chart) return;
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
  const found = [...chart.querySelectorAll("polyline")].map((line) => ({ line, ...nearest(line, at.x) }));
  if (!found.length) return;
  const rows = found.map(({ line, point, values }) => {
    const mark = document.createElementNS(chart.namespaceURI, "circle");
    for (const [name, value] of [["cx", point.x], ["cy", point.y], ["r", 4]]) mark.setAttribute(name, value);
    mark.setAttribute("class", `at ${line.getAttribute("class")}`);
    chart.append(mark);
    const row = document.createElement("div");
    row.textContent = `${line.dataset.name}: ${values[1]} at ${chart.dataset.across} ${Number(values[0]).toLocaleString("en")}`;
    row.className = line.getAttribute("class");
    return row;
  });
  tip.replaceChildren(...rows);
  tip.style.display = "block";
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${event.clientY + 18 + scrollY}px`;
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);

// The page of a running training loads itself again, but not while somebody looks at a picture or reads a folded part.
const seconds = Number(document.body.dataset.reload);
document.addEventListener("click", (event) => event.target.id === "reload" && location.reload());
async function again() {
  if (document.hidden || box.open || document.querySelector("details[open]")) return;
  if (location.protocol === "file:") return void location.reload();
  try { // `runner watch` serves this page
    const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    if (!page.querySelector("main")) throw new Error("no page");
    const places = [...document.querySelectorAll(".strip")].map((strip) => strip.scrollLeft);
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.querySelectorAll(".strip").forEach((strip, i) => { strip.scrollLeft = places[i] ?? 0; });
    document.title = page.title;
    document.body.dataset.reload = page.body.dataset.reload;
    document.body.classList.remove("gone");
  } catch { document.body.classList.add("gone"); }
}
setInterval(() => document.body.dataset.reload && again(), seconds * 1000 || 1e9);
