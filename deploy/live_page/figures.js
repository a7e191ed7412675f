// Live figures of the whole server, out of its /metrics, while somebody looks at the page.

const POLL_MS = 2000;
const HISTORY = 30;

/** Prometheus' text format as a function: the sum of a metric's samples that have these labels. */
function readMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = line.match(/^([\w:]+)(?:\{(.*)\})? (\S+)$/);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)].map((pair) => pair.slice(1)));
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  const matches = (sample, name, labels) =>
    sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value);
  const metrics = (name, labels = {}) => sum(samples.filter((one) => matches(one, name, labels)).map((one) => one.value));
  metrics.values = (name, label) => [...new Set(samples.filter((one) => one.name === name).map((one) => one.labels[label]))];
  return metrics;
}

class Figures {
  /** onDrafters is called with the names of the server's drafters. */
  constructor(onDrafters) {
    this.onDrafters = onDrafters;
    this.rates = [];
    this.before = null;
  }

  start() {
    const poll = async () => {
      try {
        if (!document.hidden) await this.#read();
      } finally {
        setTimeout(poll, POLL_MS);
      }
    };
    poll();
  }

  /** The server may be there, ready or not, without figures: while its manager starts anew. */
  async #read() {
    const [ready, text] = await Promise.all([reached(fetch("ready")).catch(nullIfRefused), fetchMetrics().catch(nullIfRefused)]);
    showReadiness(ready);
    byId("figures").classList.toggle("stale", text === null);
    const now = text === null ? null : { at: performance.now(), metrics: readMetrics(text) };
    if (now) this.#show(now);
    this.before = now;
  }

  #show({ at, metrics }) {
    const { before } = this;
    this.onDrafters(metrics.values("treeserve_draft_tokens_total", "drafter"));
    const since = (name, labels) => metrics(name, labels) - (before ? before.metrics(name, labels) : NaN);
    const rate = (1000 * since("treeserve_committed_tokens_total")) / (at - before?.at);
    if (Number.isFinite(rate) && rate >= 0) this.rates = [...this.rates, rate].slice(-HISTORY);
    const whole = (name, of) => metrics(name) / metrics(of);
    const acceptance = metrics.values("treeserve_draft_tokens_total", "drafter").map((drafter) => {
      const share = metrics("treeserve_accepted_tokens_total", { drafter }) / metrics("treeserve_draft_tokens_total", { drafter });
      return make("span", {}, drafter, make("b", {}, percent(share)));
    });
    byId("figures").replaceChildren(
      figure("tokens a second", decimal(rate, 0), sparkline(this.rates)),
      figure("tokens a step", decimal(since("treeserve_committed_tokens_total") / since("treeserve_llm_steps_total"))),
      figure("requests a step", decimal(since("treeserve_step_rows_sum") / since("treeserve_step_rows_count"), 1)),
      figure("running", metrics("treeserve_requests_running")),
      figure("waiting", metrics("treeserve_requests_waiting")),
      figure("KV in use", percent(whole("treeserve_kv_blocks_used", "treeserve_kv_blocks_total"))),
      figure("first token, mean", milliseconds(whole("treeserve_time_to_first_token_seconds_sum", "treeserve_time_to_first_token_seconds_count"))),
      figure("accepted since the start", make("span", { className: "rows" }, ...acceptance)),
    );
  }
}

function figure(title, value, picture) {
  const isWide = picture || value instanceof Node;
  return make("div", { className: isWide ? "wide" : "" }, make("dt", {}, title), make("dd", {}, value, picture ?? ""));
}

function sparkline(values) {
  const top = Math.max(1, ...values);
  const points = values.map((value, place) => `${HISTORY - values.length + place},${29 - (27 * value) / top}`).join(" ");
  const svg = makeSvg("svg", { viewBox: `0 0 ${HISTORY - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(makeSvg("polyline", { points }));
  return svg;
}

async function fetchMetrics() {
  const response = await refuseErrors(await reached(fetch("metrics")));
  return reached(response.text());
}

/** `response` is what /ready answered; null if it did not. */
function showReadiness(response) {
  byId("ready").textContent = response ? (response.ok ? "ready" : "not ready") : "the server does not answer";
  byId("ready-dot").className = `dot ${response?.ok ? "good" : "bad"}`;
}
