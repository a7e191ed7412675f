// The token tree of one step as a picture, left to right, and as text.
//
// Of siblings the accepted one stands first, and a node is level with its first child: so what was
// accepted, with the LLM's own token after it, reads as one straight line at the top.

const NODE_HEIGHT = 26;
const ROW = 34;
const GAP = 30;
const BEND = 7;
const CHIP = 17;
const LETTER = 7.9; // px: the advance of a letter at 13 px in the monospace fonts of the style
const MAX_LETTERS = 18;
const SMALLEST = 0.75;
const OWN = "LLM";

/** The nodes of a step with their children, places in the picture, and what became of them. */
function arrange(step) {
  const accepted = new Set(step.accepted);
  const nodes = step.tokens.map((token, index) => ({
    token,
    parent: step.parents[index],
    by: step.drafters[index].map((name) => drafters.of(name)),
    estimate: step.estimates[index],
    fate: index === 0 ? "root" : accepted.has(index) ? "accepted" : "thrown",
    children: [],
  }));
  if (step.committed.length > step.accepted.length) {
    const parent = step.accepted.at(-1) ?? 0;
    nodes.push({ token: step.committed.at(-1), parent, by: [], fate: "own", children: [] });
  }
  for (const node of nodes) if (node.parent >= 0) nodes[node.parent].children.push(node);
  const rank = { own: 0, accepted: 0, thrown: 1 };
  for (const node of nodes) node.children.sort((a, b) => rank[a.fate] - rank[b.fate]);
  let numRows = 0;
  const place = (node, depth) => {
    node.depth = depth;
    node.row = numRows;
    node.children.forEach((child) => place(child, depth + 1));
    if (!node.children.length) numRows += 1;
  };
  place(nodes[0], 0);
  return { nodes, numRows };
}

const chipsOf = (node) => (node.fate === "own" ? [{ letter: OWN, colour: "c-own", name: OWN }] : node.by);
const chipWidth = (chip) => Math.max(CHIP, 7 * chip.letter.length + 7);

function shownToken(node) {
  const letters = [...visible(node.token)];
  return letters.length > MAX_LETTERS ? `${letters.slice(0, MAX_LETTERS - 1).join("")}…` : letters.join("") || "∅";
}

function widthOf(node) {
  return 14 + sum(chipsOf(node).map((chip) => chipWidth(chip) + 3)) + LETTER * [...shownToken(node)].length;
}

const FATES = { root: "the last token before the step", accepted: "accepted", thrown: "thrown away", own: "the LLM’s own token" };

function describe(node) {
  const parts = [`“${visible(node.token)}”: ${FATES[node.fate]}`];
  if (node.by.length) parts.push(`by ${node.by.map((drafter) => drafter.name).join(", ")}`);
  if (node.by.length) parts.push(`chance given its parent ${percent(node.estimate)}`);
  return parts.join("; ");
}

/** What a step brought, in words. */
function summary(step) {
  const numDrafts = step.tokens.length - 1;
  const words = [`${numDrafts} drafted`, `${step.accepted.length} accepted`, count(step.committed.length, "token")];
  return words.join(", ");
}

/** The picture; one that is wider than `room` px is made smaller, down to what can be read. */
function drawTree(step, beat, room) {
  const { nodes, numRows } = arrange(step);
  const widths = [];
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, widthOf(node));
  const lefts = widths.map((_, depth) => 2 + sum(widths.slice(0, depth)) + GAP * depth);
  const width = lefts.at(-1) + widths.at(-1) + 4;
  const label = `Token tree: ${summary(step)}. Taken: ${visible(step.committed.join(""))}`;
  const height = ROW * numRows;
  const scale = clamp(room / width, SMALLEST, 1);
  const size = { width: scale * width, height: scale * height, viewBox: `0 0 ${width} ${height}` };
  const svg = makeSvg("svg", { ...size, role: "img", "aria-label": label });
  svg.style.setProperty("--beat", `${beat}ms`);
  svg.style.setProperty("--grow", `${2 * beat + 50}ms`);
  svg.style.setProperty("--depths", widths.length);
  if (beat) svg.classList.add("growing");
  for (const node of nodes) {
    node.x = lefts[node.depth];
    node.y = ROW * node.row + ROW / 2;
    node.end = node.x + widthOf(node);
  }
  for (const node of nodes.toReversed()) if (node.parent >= 0) svg.append(edge(nodes[node.parent], node));
  for (const node of nodes) svg.append(drawNode(node));
  return svg;
}

function edge(parent, node) {
  const [x0, y0, x1, y1] = [parent.end, parent.y, node.x, node.y];
  const trunk = x1 - GAP / 2;
  const bent = `H${trunk - BEND}q${BEND} 0 ${BEND} ${BEND}V${y1 - BEND}q0 ${BEND} ${BEND} ${BEND}H${x1}`;
  const line = `M${x0} ${y0}${y0 === y1 ? `H${x1}` : bent}`;
  return atDepth(node, makeSvg("path", { class: `edge ${node.fate}`, d: line }));
}

function drawNode(node) {
  const colour = node.by.length ? `by ${node.by[0].colour}` : "";
  const group = makeSvg("g", { class: `node ${node.fate} ${colour}` });
  const top = node.y - NODE_HEIGHT / 2;
  group.append(makeSvg("title", {}, describe(node)));
  group.append(makeSvg("rect", { class: "box", x: node.x, y: top, width: node.end - node.x, height: NODE_HEIGHT, rx: 6 }));
  let x = node.x + 5;
  for (const chip of chipsOf(node)) {
    const width = chipWidth(chip);
    const place = { x, y: node.y - CHIP / 2, width, height: CHIP, rx: 4, class: `chip ${chip.colour}` };
    group.append(makeSvg("rect", place));
    group.append(makeSvg("text", { class: "letter", x: x + width / 2, y: node.y + 3.6 }, chip.letter));
    x += width + 3;
  }
  const text = makeSvg("text", { class: "token", x: x + 2, y: node.y + 4.5 });
  for (const part of shownToken(node).split(/([␣⏎⇥]+)/)) {
    if (part) text.append(makeSvg("tspan", /[␣⏎⇥]/.test(part) ? { class: "blank" } : {}, part));
  }
  group.append(text);
  return atDepth(node, group);
}

function atDepth(node, element) {
  element.style.setProperty("--depth", node.depth);
  return element;
}

/** The tree as indented lines, for those who do not see the picture. */
function treeAsText(step) {
  const lines = [];
  const write = (node) => {
    lines.push("  ".repeat(node.depth) + describe(node));
    node.children.forEach(write);
  };
  write(arrange(step).nodes[0]);
  return lines.join("\n");
}
