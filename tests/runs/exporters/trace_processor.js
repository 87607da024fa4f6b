// Perfetto's own trace processor, the WebAssembly of its page, outside a browser.
//
// node trace_processor.js FOLDER < requests > replies: FOLDER holds the page's files; both streams are one
// TraceProcessorRpcStream. The module insists on being a worker, so it gets a world that looks like one.
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];

class FileRequest {
  open(_method, name) {
    this.name = name;
  }
  send() {
    this.response = fs.readFileSync(path.join(folder, path.basename(this.name)));
  }
}

const replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
const self = { location: { href: "http://localhost/engine_bundle.js" } };
const quiet = { log() {}, warn() {}, error: console.error };
const world = { self, console: quiet, XMLHttpRequest: FileRequest, WorkerGlobalScope: class {} };
Object.assign(world, { WebAssembly, URL, TextDecoder, TextEncoder, Uint8Array, TypeError, performance, setTimeout });
vm.runInNewContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), world);

setTimeout(() => {
  self.onmessage({ data: port });
  port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) });
  fs.writeSync(1, Buffer.concat(replies));
});
