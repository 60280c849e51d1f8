// The one live stream of a browser: subscribes to topics by name and counts the subscribers of each.
// Runs in a SharedWorker (worker.js), in the leader tab, or in each tab, in this order of preference.

const RETRY_MS = 5000;

export class Connection {
  #source = null;
  #id = "";
  #retry = null;
  #wanted = new Map(); // topic without its query -> { topic, listeners }
  #state = "waiting";
  #opened = 0;
  #base;
  #onState;
  #changes = Promise.resolve();

  constructor(base, onState) {
    this.#base = base;
    this.#onState = onState;
  }

  get state() { return this.#state; }

  add(topic, listener) {
    const name = topic.split("?")[0];
    const entry = this.#wanted.get(name);
    if (entry) { entry.topic = topic; entry.listeners.add(listener); } else this.#wanted.set(name, { topic, listeners: new Set([listener]) });
    if (!this.#source) this.#open();
    else { this.#listen(name); this.#change({ add: [topic] }); }
  }

  remove(topic, listener) {
    const name = topic.split("?")[0];
    const entry = this.#wanted.get(name);
    if (!entry?.listeners.delete(listener) || entry.listeners.size) return;
    this.#wanted.delete(name);
    if (this.#wanted.size) this.#change({ remove: [name] });
    else this.#close();
  }

  #open() {
    clearTimeout(this.#retry);
    this.#become("waiting");
    this.#opened = Date.now();
    this.#source = new EventSource(`${this.#base}/api/v1/live`);
    this.#source.addEventListener("hello", (event) => {
      this.#id = JSON.parse(event.data).id;
      this.#change({ add: [...this.#wanted].map(([name, entry]) => (entry.cursor ? `${name}?after=${entry.cursor}` : entry.topic)) });
      this.#become("on");
    });
    this.#source.onerror = () => {
      this.#id = "";
      this.#become("off");
      if (this.#source?.readyState === EventSource.CLOSED) this.#reopen();
    };
    for (const name of this.#wanted.keys()) this.#listen(name);
  }

  #reopen() {
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => { if (this.#wanted.size) this.#open(); }, RETRY_MS);
  }

  // The stream is another caller's: somebody has logged in or out in another tab.
  #renew(id) {
    if (id !== this.#id) return;
    this.#id = "";
    if (Date.now() - this.#opened < RETRY_MS) { this.#become("off"); this.#reopen(); return; }
    this.#source?.close();
    this.#open();
  }

  #close() {
    this.#source?.close();
    this.#source = null;
    this.#id = "";
    clearTimeout(this.#retry);
  }

  #listen(name) {
    const source = this.#source;
    source.names ??= new Set();
    if (source.names.has(name)) return;
    source.names.add(name);
    source.addEventListener(name, (event) => {
      const entry = this.#wanted.get(name);
      if (!entry) return;
      if (name.startsWith("log/") && !event.data.startsWith('{"problem":')) entry.cursor = event.lastEventId; // a log goes on here after a reconnect
      entry.listeners.forEach((listener) => listener({ topic: name, data: event.data }));
    });
  }

  #become(state) {
    this.#state = state;
    this.#onState(state);
  }

  // Topics are sent one after another; one that the server refuses is reported to its listeners alone.
  #change(body) {
    if (!this.#id) return;
    const id = this.#id;
    this.#changes = this.#changes.then(() => this.#send(id, body));
  }

  async #send(id, body) {
    if (id !== this.#id) return;
    try {
      const response = await fetch(`${this.#base}/api/v1/live/${id}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      if (response.ok || id !== this.#id) return;
      if (response.status === 404 && (await response.json().catch(() => ({}))).code === "STREAM_NOT_FOUND") { this.#renew(id); return; }
      if (response.status === 404 && !body.add?.length) return;
      if (body.add?.length > 1) { for (const topic of body.add) await this.#send(id, { add: [topic] }); return; }
      const name = body.add?.[0]?.split("?")[0];
      this.#wanted.get(name)?.listeners.forEach((listener) => listener({ topic: name, refused: response.status }));
    } catch { if (id === this.#id) { this.#become("off"); this.#reopen(); } }
  }
}
