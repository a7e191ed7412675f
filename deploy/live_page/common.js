"use strict";
// Small things that the other parts share. All parts stand in one script, this one first.

const byId = (id) => document.getElementById(id);

/** An element with properties and children; text never becomes markup. */
function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

const percent = (share) => (Number.isFinite(share) ? `${Math.round(100 * share)} %` : "–");
const decimal = (value, digits = 2) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

function milliseconds(seconds) {
  const ms = 1000 * seconds;
  return `${ms < 0.995 ? ms.toFixed(2) : ms < 99.5 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

/** Blanks of a token made visible. */
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

/** Scroll a box, and nothing around it, until a part of it is seen. */
function keepInView(box, part) {
  const [outer, inner] = [box.getBoundingClientRect(), part.getBoundingClientRect()];
  if (inner.left < outer.left) box.scrollLeft -= outer.left - inner.left;
  else if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right;
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
}

/** Names of drafters, each with a colour and a letter of its own; the same all along. */
class Drafters {
  #known = new Map();

  of(name) {
    if (!this.#known.has(name)) {
      this.#known.set(name, { name, colour: `c${this.#known.size % 8}`, letter: this.#letter(name) });
    }
    return this.#known.get(name);
  }

  /** The first letter, with the number if the name has one; another letter if that one is taken. */
  #letter(name) {
    const number = name.match(/\d+$/)?.[0] ?? "";
    const taken = new Set([...this.#known.values()].map((other) => other.letter));
    const letters = [...name.toUpperCase()].filter((letter) => /[A-Z]/.test(letter));
    return letters.map((letter) => letter + number).find((tag) => !taken.has(tag)) ?? String(taken.size);
  }
}

const drafters = new Drafters();

function tag(drafter) {
  return make("span", { className: `tag ${drafter.colour}`, ariaHidden: "true" }, drafter.letter);
}
