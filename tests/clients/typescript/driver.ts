/**
 * Does with sidecar.ts what `sidecar conformance --client "node build/driver.js"` says, a line for each vector.
 * An argument says how many seconds the client looks for a daemon, and waits behind an expiry; 5 without it.
 */
import { createInterface } from "node:readline";
import {
  canonicalBytes, DaemonError, newInvocation, Refused, RequestFailed, SidecarClient, SidecarError,
  type Digest, type InvokeOptions, type ProviderRequest, type TransportEvent, type TransportInvocation,
} from "./sidecar.ts";

type Asked = {
  request: ProviderRequest;
  expires_at_unix_ms: number | bigint;
  max_cost_micro_usd: number | bigint;
  native_request_sha256: Digest | null;
};
type Action =
  | ({ do: "encode" | "invoke" | "stream" | "quote" } & Asked)
  | { do: "status" }
  | { do: "cancel"; request_id: string };
type Vector = { vector: string; socket: string; caller: string | null; actions: Action[] };

const patienceSeconds = Number(process.argv[2] ?? 5);

/** Bytes stand as base64 and large integers as {"$int": digits} in the lines. */
function read(line: string): unknown {
  return JSON.parse(line, (member: string, value: unknown) => {
    if (member === "state" && typeof value === "string") return new Uint8Array(Buffer.from(value, "base64"));
    if (typeof value === "object" && value !== null && "$int" in value) return BigInt(String(value.$int));
    return value;
  });
}

function write(value: unknown): void {
  const line = JSON.stringify(value, (_, member: unknown) => {
    if (member instanceof Uint8Array) return Buffer.from(member).toString("base64");
    return typeof member === "bigint" ? { $int: String(member) } : member;
  });
  process.stdout.write(`${line}\n`);
}

function invocationOf(caller: string, asked: Asked): TransportInvocation {
  const { expires_at_unix_ms: expiresAtUnixMs, max_cost_micro_usd: maxCostMicroUsd } = asked;
  const options: InvokeOptions = { expiresAtUnixMs, maxCostMicroUsd };
  if (asked.native_request_sha256 !== null) options.nativeRequestSha256 = asked.native_request_sha256;
  return newInvocation(caller, asked.request, options);
}

async function act(client: SidecarClient, action: Action, tell: (event: TransportEvent) => void): Promise<object> {
  switch (action.do) {
    case "encode":
      return { bytes: canonicalBytes(invocationOf(client.caller, action)) };
    case "invoke": {
      const { events, receipt } = await client.invoke(invocationOf(client.caller, action));
      return { transported: { events, receipt } };
    }
    case "stream": {
      const stream = client.stream(invocationOf(client.caller, action));
      for await (const event of stream) tell(event);
      const { events, receipt } = await stream.result;
      return { transported: { events, receipt } };
    }
    case "quote": {
      const { refusal, worstCaseMicroUsd } = await client.quote(invocationOf(client.caller, action));
      return { quoted: { refusal, worst_case_micro_usd: worstCaseMicroUsd } };
    }
    case "status":
      return { status: await client.status() };
    case "cancel":
      await client.cancel(action.request_id);
      return { cancelled: true };
  }
}

function outcomeOf(fault: unknown): object {
  if (fault instanceof Refused) return { refused: fault.refusal };
  if (fault instanceof RequestFailed) return { transported: { events: fault.events, receipt: fault.receipt } };
  if (fault instanceof DaemonError) return { transport_error: fault.code };
  if (fault instanceof SidecarError) return { no_answer: fault.message };
  return { fault: fault instanceof Error ? (fault.stack ?? fault.message) : String(fault) };
}

async function outcomesOf({ vector, socket, caller, actions }: Vector): Promise<object[]> {
  if (caller !== null && actions.every((action) => action.do === "encode")) {
    return actions.map((action) => {
      try {
        return { bytes: canonicalBytes(invocationOf(caller, action as Asked)) };
      } catch (fault) {
        return outcomeOf(fault);
      }
    });
  }
  const patience = { reconnectSecondsMax: patienceSeconds, answerSecondsMax: patienceSeconds };
  const client = await SidecarClient.connect(socket, { ...(caller === null ? {} : { caller }), ...patience });
  try {
    return await Promise.all(
      actions.map((action, at) =>
        act(client, action, (event) => write({ vector, action: at, event })).catch(outcomeOf),
      ),
    );
  } finally {
    client.close();
  }
}

write({
  driver: 1,
  client: "sidecar.ts",
  claims: ["encode", "concurrent", "resend", "stream", "quote", "status", "cancel", "welcome"],
});
for await (const line of createInterface({ input: process.stdin })) {
  const vector = read(line) as Vector;
  const outcomes = await outcomesOf(vector).catch((fault: unknown) => vector.actions.map(() => outcomeOf(fault)));
  write({ vector: vector.vector, outcomes });
}
