// gRPC and gRPC-Web clients of Node: they retry after the pushback, and decode the rejection. What no client shows,
// the frames, is looked at with node:http2.

import { Code, ConnectError, createPromiseClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { Duration, MethodKind, StringValue, proto3 } from "@bufbuild/protobuf";
import grpc from "@grpc/grpc-js";
import grpcWeb from "grpc-web";
import http2 from "node:http2";
import XMLHttpRequest from "xhr2";

import { Route, SLACK, WAIT, checked, timed, version } from "./measure.mjs";

const SERVICE = "sluice.example.v1.Echo";
const PATH = `/${SERVICE}/Echo`;
const DEADLINE = 10_000;
// Its own backoff is far shorter than the pushback, so that what is waited is the pushback.
const RETRYING = {
  methodConfig: [
    {
      name: [{ service: SERVICE }],
      retryPolicy: {
        maxAttempts: 3,
        initialBackoff: "0.1s",
        maxBackoff: "0.2s",
        backoffMultiplier: 1,
        retryableStatusCodes: ["RESOURCE_EXHAUSTED"],
      },
    },
  ],
};
const END_STREAM = http2.constants.NGHTTP2_FLAG_END_STREAM;

// EchoRequest and its answer have, as StringValue, one string in field 1.
const hello = new StringValue({ value: "hello" });
const RetryInfo = proto3.makeMessageType("google.rpc.RetryInfo", [
  { no: 1, name: "retry_delay", kind: "message", T: Duration },
]);

function assert(holds, problem) {
  if (!holds) throw new Error(problem);
}

function echo(client, key) {
  const metadata = new grpc.Metadata();
  metadata.set("x-client", key);
  const write = (message) => Buffer.from(message.toBinary());
  const read = (bytes) => StringValue.fromBinary(bytes);
  return new Promise((resolve, reject) => {
    const options = { deadline: Date.now() + DEADLINE };
    const done = (error, answer) => (error ? reject(error) : resolve(answer.value));
    client.makeUnaryRequest(PATH, write, read, hello, metadata, options, done);
  });
}

/** The error that a call ends with. */
function rejectionOf(call) {
  return call.then(() => assert(false, "the second call was not rejected"), (error) => error);
}

/** The pushback of a rejection, in milliseconds, if it is the one canonical integer that it must be. */
function pushbackOf(values) {
  assert(values.length === 1 && /^[1-9]\d*$/.test(values[0]) && Number(values[0]) <= WAIT, `pushback ${values}`);
  return Number(values[0]);
}

async function retries({ server, plain, credentials }) {
  const options = { "grpc.service_config": JSON.stringify(RETRYING) };
  const client = new grpc.Client(new URL(server).host, credentials, options);
  const route = new Route(server, PATH);
  let before, delay;
  const [sinceFirst, said] = await timed(async () => {
    await echo(plain, "grpc-js");
    before = await route.count("rejected");
    const [took, said] = await timed(() => echo(client, "grpc-js"));
    delay = took;
    return said;
  });
  const rejected = (await route.count("rejected")) - before;
  client.close();
  // The pushback tells what is left of the wait, to the millisecond.
  assert(
    said === "hello" && rejected === 1 && sinceFirst >= WAIT && delay < WAIT + SLACK,
    `rejected ${rejected}x, ${Math.round(delay)} ms: should be rejected once, and succeed ${WAIT} ms after the first call`,
  );
  return { did: `rejected ${rejected}x, then OK`, delay };
}

async function rejected({ plain }) {
  await echo(plain, "grpc-js-plain");
  const rejection = await rejectionOf(echo(plain, "grpc-js-plain"));
  assert(rejection.code === grpc.status.RESOURCE_EXHAUSTED, rejection.message);
  const pushback = pushbackOf(rejection.metadata.get("grpc-retry-pushback-ms"));
  return { did: `RESOURCE_EXHAUSTED, pushback ${pushback} ms` };
}

/** Frames of one call by hand: the fields of the answer, whether they ended it, and its trailers. */
function frames(server, key) {
  const message = Buffer.from(hello.toBinary());
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(message.length, 1);
  const session = http2.connect(server);
  return new Promise((resolve, reject) => {
    const type = "application/grpc";
    const asked = { ":method": "POST", ":path": PATH, "content-type": type, te: "trailers", "x-client": key };
    const stream = session.request(asked);
    const answer = {};
    session.on("error", reject);
    stream.on("response", (fields, flags) => Object.assign(answer, { fields, ends: (flags & END_STREAM) !== 0 }));
    stream.on("trailers", (trailers) => (answer.trailers = trailers));
    stream.on("error", reject).on("end", () => resolve(answer)).resume();
    stream.setTimeout(DEADLINE, () => reject(new Error("no answer")));
    stream.end(Buffer.concat([prefix, message]));
  }).finally(() => session.destroy());
}

async function looksAtFrames({ server }) {
  const served = await frames(server, "http2");
  assert(!served.ends && served.trailers?.["grpc-status"] === "0", "the first call was not served");
  const late = Object.keys(served.trailers).filter((name) => /^(x-)?ratelimit/.test(name));
  assert(late.length === 0, `${late} in the trailers of a streamed answer`);
  const { fields, ends } = await frames(server, "http2");
  assert(ends, "HEADERS of the rejection without END_STREAM: not Trailers-Only");
  assert(fields[":status"] === 200 && fields["grpc-status"] === "8", `${fields[":status"]}, ${fields["grpc-status"]}`);
  assert(/^application\/grpc(\+proto)?$/.test(fields["content-type"]), fields["content-type"]);
  pushbackOf([fields["grpc-retry-pushback-ms"]].flat());
  return { did: "Trailers-Only: END_STREAM on the HEADERS of the rejection" };
}

async function googleGrpcWeb({ server, plain }) {
  globalThis.XMLHttpRequest = XMLHttpRequest;
  const { MethodDescriptor, MethodType } = grpcWeb;
  const write = (message) => message.toBinary();
  const read = (bytes) => StringValue.fromBinary(bytes);
  const method = new MethodDescriptor(PATH, MethodType.UNARY, StringValue, StringValue, write, read);
  const client = new grpcWeb.GrpcWebClientBase({ format: "text" });
  await echo(plain, "grpc-web");
  const call = new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    client.rpcCall(server + PATH, hello, { "x-client": "grpc-web" }, method, done);
  });
  const rejection = await rejectionOf(call);
  assert(rejection.code === grpcWeb.StatusCode.RESOURCE_EXHAUSTED, `code ${rejection.code}: ${rejection.message}`);
  const pushback = pushbackOf([rejection.metadata["grpc-retry-pushback-ms"]]);
  return { did: `RESOURCE_EXHAUSTED, pushback ${pushback} ms` };
}

async function connectGrpcWeb({ server, plain }) {
  const method = { name: "Echo", I: StringValue, O: StringValue, kind: MethodKind.Unary };
  const transport = createGrpcWebTransport({ baseUrl: server, defaultTimeoutMs: DEADLINE });
  const client = createPromiseClient({ typeName: SERVICE, methods: { echo: method } }, transport);
  await echo(plain, "connect");
  const rejection = ConnectError.from(await rejectionOf(client.echo(hello, { headers: { "x-client": "connect" } })));
  assert(rejection.code === Code.ResourceExhausted, `${Code[rejection.code]}: ${rejection.rawMessage}`);
  const pushback = pushbackOf([rejection.metadata.get("grpc-retry-pushback-ms")]);
  const [retry] = rejection.findDetails(RetryInfo);
  assert(retry, "no RetryInfo among the details");
  const delay = Number(retry.retryDelay.seconds) * 1000 + retry.retryDelay.nanos / 1e6;
  assert(Math.ceil(delay) === pushback, `RetryInfo ${delay} ms, pushback ${pushback} ms`);
  return { did: `ResourceExhausted, RetryInfo ${(delay / 1000).toFixed(6)} s` };
}

// Name, package, check.
const CHECKS = [
  ["grpc-js, retryPolicy", "@grpc/grpc-js", retries],
  ["grpc-js", "@grpc/grpc-js", rejected],
  ["node:http2", null, looksAtFrames],
  ["grpc-web", "grpc-web", googleGrpcWeb],
  ["connect-es, gRPC-Web", "@connectrpc/connect-web", connectGrpcWeb],
];

export async function run({ server }) {
  const credentials = grpc.credentials.createInsecure();
  const plain = new grpc.Client(new URL(server).host, credentials, { "grpc.enable_retries": 0 });
  const rows = [];
  // One after the other, since they share a route's counters.
  for (const [name, pack, check] of CHECKS) {
    const installed = pack ? version(pack) : process.versions.node;
    rows.push(await checked(name, installed, () => check({ server, plain, credentials })));
  }
  plain.close();
  return rows;
}
