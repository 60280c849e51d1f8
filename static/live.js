// Live topics for the modules of a page, whatever carries them: a SharedWorker, the leader tab, or this tab.
import { Connection } from "./connection.js";

const base = document.body.dataset.base;
const listeners = new Map(); // topic name -> { topic, functions }
const stateListeners = new Set();
let carrier = null;
let state = "waiting";

export function onState(listener) { stateListeners.add(listener); listener(state); }

// Calls `listener` with { data } or { refused } for each event of the topic until the returned function is called.
export function subscribe(topic, listener) {
  carrier ??= openCarrier();
  const name = topic.split("?")[0];
  const entry = listeners.get(name);
  if (entry) entry.functions.add(listener);
  else { listeners.set(name, { topic, functions: new Set([listener]) }); carrier.add(topic); }
  return () => {
    const current = listeners.get(name);
    if (!current?.functions.delete(listener) || current.functions.size) return;
    listeners.delete(name);
    carrier.remove(topic);
  };
}

function deliver(message) {
  if (message.state) {
    state = message.state;
    stateListeners.forEach((listener) => listener(state));
  } else listeners.get(message.topic)?.functions.forEach((listener) => listener(message));
}

function openCarrier() {
  if ("SharedWorker" in window) return openWorker();
  return "locks" in navigator && "BroadcastChannel" in window ? openLeader() : openOwn();
}

function openWorker() {
  const worker = new SharedWorker(document.body.dataset.worker, { type: "module" });
  let own = null;
  worker.onerror = () => { // the worker cannot be loaded: this tab connects by itself
    own ??= openOwn();
    for (const { topic } of listeners.values()) own.add(topic);
  };
  worker.port.onmessage = ({ data }) => deliver(data);
  addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
  return {
    add: (topic) => (own ? own.add(topic) : worker.port.postMessage({ base, add: topic })),
    remove: (topic) => (own ? own.remove(topic) : worker.port.postMessage({ base, remove: topic })),
  };
}

function openOwn() {
  const connection = new Connection(base, (now) => deliver({ state: now }));
  return { add: (topic) => connection.add(topic, deliver), remove: (topic) => connection.remove(topic, deliver) };
}

// One tab holds the lock and the connection; the others reach it by a channel, and one of them follows it.
function openLeader() {
  const channel = new BroadcastChannel("pilothouse-live");
  const tab = crypto.randomUUID();
  let leader = null;
  const remote = new Map(); // topic -> tabs that want it
  const relay = (message) => { deliver(message); channel.postMessage({ message }); };
  const lead = () => {
    leader = new Connection(base, (now) => relay({ state: now }));
    for (const { topic } of listeners.values()) leader.add(topic, relay);
    channel.postMessage({ announce: true });
  };
  channel.onmessage = ({ data }) => {
    if (data.message && !leader) deliver(data.message);
    if (data.announce) for (const { topic } of listeners.values()) channel.postMessage({ add: topic, tab });
    if (!leader) return;
    if (data.add) { remote.set(data.add, (remote.get(data.add) || new Set()).add(data.tab)); leader.add(data.add, relay); channel.postMessage({ message: { state: leader.state } }); }
    if (data.remove) {
      remote.get(data.remove)?.delete(data.tab);
      if (!remote.get(data.remove)?.size && !listeners.has(data.remove.split("?")[0])) leader.remove(data.remove, relay);
    }
  };
  navigator.locks.request("pilothouse-live", () => { lead(); return new Promise(() => {}); });
  addEventListener("pagehide", () => { for (const { topic } of listeners.values()) channel.postMessage({ remove: topic, tab }); });
  return {
    add: (topic) => (leader ? leader.add(topic, relay) : channel.postMessage({ add: topic, tab })),
    remove: (topic) => (leader ? leader.remove(topic, relay) : channel.postMessage({ remove: topic, tab })),
  };
}
