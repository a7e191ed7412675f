// One request to the server, read while it comes (server-sent events).

/** An answer of the server that is an error, in its own words; or that none could be had. */
class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** A header cannot hold every character; the server's keys are ASCII text. */
function authorization(key) {
  if (!key) return {};
  if (/[^ -~]/.test(key)) throw new ServerError("this is no API key: keys have ASCII characters alone.", 401);
  return { authorization: `Bearer ${key}` };
}

/** What a fetch, or reading what it brought, comes to; if that fails, it is a ServerError. */
async function reached(outcome) {
  try {
    return await outcome;
  } catch {
    throw new ServerError("the server cannot be reached.");
  }
}

/** For what may go without an answer: null for a ServerError. Faults of the page itself go on. */
function nullIfRefused(error) {
  if (error instanceof ServerError) return null;
  throw error;
}

async function refuseErrors(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `the server answered ${response.status}`, response.status);
}

async function fetchModel(key) {
  const response = await refuseErrors(await reached(fetch("v1/models", { headers: authorization(key) })));
  return JSON.parse(await reached(response.text())).data[0].id;
}

/** Ask; yields the chunks of the stream. `signal` stops it. */
async function* ask(wish, key, signal) {
  const { mode, prompt, ...fields } = wish;
  const isChat = mode === "chat";
  const text = isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt };
  const request = {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...authorization(key) },
    body: JSON.stringify({ ...text, ...fields, stream: true, return_trees: true }),
  };
  const response = await reached(fetch(isChat ? "v1/chat/completions" : "v1/completions", request));
  yield* events((await refuseErrors(response)).body);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) throw new ServerError("the stream broke off");
    const frames = (pending + value).split("\n\n");
    pending = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue; // a comment, as proxies put them in
      const data = frame.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message);
      yield chunk;
    }
  }
}

const textOf = (choice) => choice.text ?? choice.delta?.content ?? "";
