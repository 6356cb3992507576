// The page works without this: it adds the theme, values under the pointer and keys, and pauses.
"use strict";

const root = document.documentElement;
const shown = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Theme: the system's, until the button is pressed.
(() => {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const key = "envfleet-report-theme";
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  try {
    const kept = localStorage.getItem(key);
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* a browser may refuse to keep anything */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* same */ }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
})();

// The section that is being read, in the navigation.
(() => {
  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) links.set(link.hash.slice(1), link);
  const sections = [...document.querySelectorAll("main > section")];
  let current = null;
  const look = () => {
    const end = innerHeight + scrollY >= document.body.scrollHeight - 2;
    const above = sections.filter((s) => s.getBoundingClientRect().top < 120);
    const now = end && scrollY > 0 ? sections.at(-1) : above.at(-1) ?? sections[0];
    if (now === current || !now) return;
    if (current) links.get(current.id)?.removeAttribute("aria-current");
    current = now;
    const link = links.get(current.id);
    link.setAttribute("aria-current", "true");
    const list = link.closest("ul");
    list.scrollTo({ left: link.parentElement.offsetLeft - list.clientWidth / 3 });
  };
  addEventListener("scroll", look, { passive: true });
  addEventListener("resize", look);
  look();
})();

// The last point at or before x; the first one if there is none.
function before(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

function nearest(xs, x) {
  const at = before(xs, x);
  return at + 1 < xs.length && xs[at + 1] - x < x - xs[at] ? at + 1 : at;
}

function explore(figure) {
  const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const area = figure.querySelector(".area");
  const title = figure.querySelector("h3").textContent;
  const hidden = new Set();
  const steps = [...new Set(data.curves.flatMap((c) => c.x))].sort((a, b) => a - b);
  if (!steps.length) return;
  const value = (v) => v == null ? "–" : data.percent ? `${shown.format(100 * v)} %` : shown.format(v);

  // A slider is what screen readers know: arrows move it, and it says the values of its place.
  const cursor = make("div", "cursor");
  const tip = make("div", "tip");
  const line = make("i");
  cursor.append(line);
  area.append(cursor, tip);
  tip.hidden = line.hidden = true;
  cursor.tabIndex = 0;
  cursor.setAttribute("role", "slider");
  cursor.setAttribute("aria-label", `${title}, values by step`);
  cursor.setAttribute("aria-valuemin", "0");
  cursor.setAttribute("aria-valuemax", String(steps.length - 1));
  let index = steps.length - 1;

  // What each visible curve says at a step; curves that have ended or not begun say nothing.
  const at = (step) => data.curves.flatMap((curve, number) => {
    if (hidden.has(number) || !curve.x.length) return [];
    if (step < curve.x[0] || step > curve.x.at(-1)) return [];
    const i = nearest(curve.x, step);
    if (curve.y[i] == null) return [];
    const band = curve.low && curve.low[i] != null ? `${value(curve.low[i])} to ${value(curve.high[i])}` : "";
    return [{ colour: curve.colour, name: curve.name, text: value(curve.y[i]), band, x: curve.x[i], y: (curve.at ?? curve.y)[i] }];
  });
  const words = (step, told) => [`step ${whole.format(step)}`,
    ...told.map((t) => `${t.name} ${t.text}${t.band ? ` (${t.band})` : ""}`)].join(", ");
  const announce = () => {
    cursor.setAttribute("aria-valuenow", String(index));
    cursor.setAttribute("aria-valuetext", words(steps[index], at(steps[index])));
  };

  const show = (to) => {
    index = Math.max(0, Math.min(steps.length - 1, to));
    const step = steps[index];
    const told = at(step);
    const left = (step - data.x[0]) / (data.x[1] - data.x[0]);
    for (const dot of cursor.querySelectorAll("b")) dot.remove();
    for (const t of told) {
      const dot = make("b", `c${t.colour}`);
      dot.style.left = `${100 * (t.x - data.x[0]) / (data.x[1] - data.x[0])}%`;
      dot.style.top = `${100 * (1 - (t.y - data.y[0]) / (data.y[1] - data.y[0]))}%`;
      cursor.append(dot);
    }
    line.style.left = `${100 * left}%`;
    tip.replaceChildren(make("small", "", `step ${whole.format(step)}`));
    for (const t of data.curves.some((c) => c.at) ? told.toReversed() : told) {
      const row = make("div");
      row.append(make("i", `key c${t.colour}`), make("span", "", t.name), make("span", "", t.text));
      tip.append(row);
      if (t.band) tip.append(make("small", "", t.band));
    }
    tip.hidden = line.hidden = false;
    const room = area.clientWidth - tip.offsetWidth;
    const beside = left < 0.5 ? left * area.clientWidth + 12 : left * area.clientWidth - tip.offsetWidth - 12;
    tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    announce();
  };
  const hide = () => {
    tip.hidden = line.hidden = true;
    for (const dot of cursor.querySelectorAll("b")) dot.remove();
  };
  const follow = (event) => {
    const box = area.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    show(nearest(steps, data.x[0] + part * (data.x[1] - data.x[0])));
  };
  cursor.addEventListener("pointermove", follow);
  cursor.addEventListener("pointerdown", follow);
  cursor.addEventListener("pointerleave", () => { if (document.activeElement !== cursor) hide(); });
  cursor.addEventListener("focus", () => show(index));
  cursor.addEventListener("blur", hide);
  cursor.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(steps.length / 10));
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far };
    if (event.key in moves) show(index + moves[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(steps.length - 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
  for (const button of figure.querySelectorAll("[data-hides]")) {
    button.addEventListener("click", () => {
      const number = Number(button.dataset.hides);
      const off = !hidden.has(number);
      if (off) hidden.add(number); else hidden.delete(number);
      button.setAttribute("aria-pressed", String(!off));
      figure.querySelector(`[data-curve="${number}"]`).toggleAttribute("hidden", off);
      announce();
    });
  }
  announce();
}
document.querySelectorAll(".chart").forEach(explore);

// A GIF never ends, so that each gets a button: a canvas with its first frame takes its place.
function pausable(image) {
  const button = make("button", "", "Pause");
  button.type = "button";
  const still = make("canvas");
  still.hidden = true;
  still.setAttribute("role", "img");
  still.setAttribute("aria-label", image.alt);
  image.after(still, button);
  const pause = (paused) => {
    if (paused) {
      still.width = image.naturalWidth;
      still.height = image.naturalHeight;
      still.getContext("2d").drawImage(image, 0, 0);
    }
    still.hidden = !paused;
    image.hidden = paused;
    button.textContent = paused ? "Play" : "Pause";
    button.setAttribute("aria-label", `${button.textContent} ${image.alt}`);
  };
  button.addEventListener("click", () => pause(still.hidden));
  const ready = () => pause(calm);
  if (image.complete) ready(); else image.addEventListener("load", ready);
}
document.querySelectorAll("img.gif").forEach(pausable);
