// Tokens by step as a row of bars; of a long answer those around the shown step, lest each new bar
// lay out thousands.

const MOST_BARS = 400;

class Bars {
  /** onPick is called with the index of a step whose bar was clicked. */
  constructor(onPick) {
    this.box = byId("bars");
    this.box.addEventListener("click", (event) => {
      const bar = event.target.closest(".bar");
      if (bar) onPick(Number(bar.dataset.step));
    });
    this.clear();
  }

  clear() {
    this.first = 0; // the step of the first bar
    this.now = null;
    this.most = 1;
    this.box.style.setProperty("--max", 2);
    this.box.replaceChildren();
  }

  /** The newest step; it gets no bar while the shown one is far from it. */
  add(step, index) {
    if (step.committed.length > this.most) {
      this.most = step.committed.length;
      this.box.style.setProperty("--max", Math.max(2, this.most));
    }
    if (index < this.first + MOST_BARS) this.box.append(bar(step, index));
  }

  /** Mark the bar of one of the steps, and have it in view. */
  show(steps, index) {
    if (index < this.first || index >= this.first + this.box.children.length) {
      this.first = Math.max(0, index - MOST_BARS / 2);
      const within = steps.slice(this.first, this.first + MOST_BARS);
      this.box.replaceChildren(...within.map((step, place) => bar(step, this.first + place)));
    }
    this.now?.classList.remove("now");
    this.now = this.box.children[index - this.first];
    this.now.classList.add("now");
    keepInView(this.box, this.now);
  }

  /** What the bars say, in words, to those who do not see them. */
  describe(numSteps, shown, words) {
    this.box.ariaValueMin = String(Math.min(1, numSteps));
    this.box.ariaValueMax = String(numSteps);
    this.box.ariaValueNow = String(shown + 1);
    this.box.ariaValueText = words;
  }

  /** Which steps have a bar, if not all. */
  excerpt(numSteps) {
    const numBars = this.box.children.length;
    return numBars < numSteps ? `; here steps ${this.first + 1} to ${this.first + numBars}` : "";
  }
}

function bar(step, index) {
  const numOwn = step.committed.length - step.accepted.length;
  const element = make("span", { className: "bar" }, barPart("taken", step.accepted.length), barPart("own", numOwn));
  element.dataset.step = index;
  return element;
}

function barPart(kind, numTokens) {
  const part = make("i", { className: kind });
  part.style.setProperty("--n", numTokens);
  return part;
}
