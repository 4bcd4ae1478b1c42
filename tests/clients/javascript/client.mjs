// One exchange with the daemon: node client.mjs SOCKET CALLER MODEL TEXT
// Prints {"text": ..., "receipt": ...}; a refusal or a transport error goes to stderr, with exit code 1.
import { randomUUID } from "node:crypto";
import { connect } from "node:net";
import { decode, digest, encode } from "./canonical.mjs";

const FRAME_BYTES_LIMIT = 2 ** 24 - 1;

export function invocation({ caller, model, text, lifetimeMs = 60_000, maxCostMicroUsd = 100_000 }) {
  const request = {
    schema_id: "gamecult.model.provider_request.v1",
    request_id: `turn-${randomUUID()}`,
    conversation_id: "tavern",
    model,
    instructions: "You are a goblin. \u{1F47A}",
    input: [{ UserText: { text } }],
    tools: [],
    tool_choice: "auto",
    parallel_tool_calls: false,
    max_output_tokens: 100,
    cache_retention: null,
  };
  return {
    schema_id: "gamecult.model.transport_invocation.v1",
    caller_runtime_id: caller,
    expires_at_unix_ms: Date.now() + lifetimeMs,
    max_cost_micro_usd: maxCostMicroUsd,
    native_request_sha256: digest(request), // a caller without a native request of its own puts the same digest here
    provider_request_sha256: digest(request),
    request,
  };
}

export function framed(encoded) {
  if (encoded.length > FRAME_BYTES_LIMIT) throw new RangeError(`a frame of ${encoded.length} bytes`);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(encoded.length);
  return Buffer.concat([length, encoded]);
}

/** The values of the frames that come over a socket, in their order. */
export async function* framesOf(socket) {
  let pieces = [];
  let held = 0;
  let wanted = 4;
  let inBody = false;
  for await (const piece of socket) {
    pieces.push(piece);
    held += piece.length;
    while (held >= wanted) {
      const received = Buffer.concat(pieces);
      const [taken, rest] = [received.subarray(0, wanted), received.subarray(wanted)];
      [pieces, held] = [[rest], rest.length];
      if (inBody) yield decode(taken);
      wanted = inBody ? 4 : taken.readUInt32BE();
      if (wanted === 0 || wanted > FRAME_BYTES_LIMIT) throw new RangeError(`a frame of ${wanted} bytes`);
      inBody = !inBody;
    }
  }
}

/** Sends one invocation and gives its result. The same bytes can be sent again after a lost socket. */
export async function ask(path, asked) {
  const socket = connect(path);
  socket.write(framed(encode(asked)));
  try {
    for await (const answer of framesOf(socket)) {
      if (answer.schema_id === "gamecult.model.transport_error.v1") throw new Error(`${answer.code}: ${answer.message}`);
      if (answer.request_id === asked.request.request_id && answer.disposition) return answer;
    }
  } finally {
    socket.destroy();
  }
  throw new Error("the daemon closed the connection before it had answered");
}

async function main([path, caller, model, text]) {
  const { disposition } = await ask(path, invocation({ caller, model, text }));
  if (disposition.Refused) throw new Error(`refused: ${disposition.Refused}`);
  const { events, receipt } = disposition.Transported;
  const said = events.map(({ payload }) => payload.TextDelta?.text ?? "").join("");
  const printable = (_, member) => (typeof member !== "bigint" ? member : member < 2 ** 53 ? Number(member) : String(member));
  console.log(JSON.stringify({ text: said, receipt }, printable));
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  main(process.argv.slice(2)).catch((fault) => {
    console.error(fault.message);
    process.exitCode = 1;
  });
}
