// A worker that all tabs share: one connection for each event stream, however many tabs are open.
// A browser grants six connections to a host over HTTP/1.1; a stream holds one for good.
const sources = new Map();
const again = 5000;

function open(url, names, ports) {
  const source = { ports, is: "waiting", events: new EventSource(url) };
  const tell = (message) => source.ports.forEach((port) => port.postMessage(message));
  const become = (is) => { source.is = is; tell({ url, is }); };
  source.events.onopen = () => become("on");
  source.events.onerror = () => {
    become("off");
    if (source.events.readyState === EventSource.CLOSED) source.timer = setTimeout(open, again, url, names, ports); // it was refused
  };
  for (const name of names) source.events.addEventListener(name, (event) => tell({ url, name, data: event.data }));
  sources.set(url, source);
  return source;
}

onconnect = (connection) => {
  const port = connection.ports[0];
  port.onmessage = ({ data }) => {
    if (data.leave) {
      for (const [url, source] of sources) {
        source.ports.delete(port);
        if (!source.ports.size) { source.events.close(); clearTimeout(source.timer); sources.delete(url); }
      }
      return;
    }
    const source = sources.get(data.url) || open(data.url, data.names, new Set());
    source.ports.add(port);
    port.postMessage({ url: data.url, is: source.is });
  };
};
