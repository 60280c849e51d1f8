// The SharedWorker that holds the live stream for all tabs of this browser.
import { Connection } from "./connection.js";

const ports = new Map(); // port -> Map of topic names and topics
let connection = null;

function broadcast(state) { for (const port of ports.keys()) port.postMessage({ state }); }

self.onconnect = ({ ports: [port] }) => {
  const topics = new Map();
  const listener = (message) => port.postMessage(message);
  ports.set(port, topics);
  port.onmessage = ({ data }) => {
    connection ??= new Connection(data.base, broadcast);
    if (data.add) {
      const name = data.add.split("?")[0];
      if (topics.has(name)) connection.remove(topics.get(name), listener);
      topics.set(name, data.add);
      connection.add(data.add, listener);
      port.postMessage({ state: connection.state });
    }
    if (data.remove) {
      connection.remove(data.remove, listener);
      topics.delete(data.remove.split("?")[0]);
    }
    if (data.leave) {
      for (const topic of topics.values()) connection.remove(topic, listener);
      ports.delete(port);
    }
  };
};
