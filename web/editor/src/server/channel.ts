/**
 * Maintains the native channel (subprotocol `katz.msgpack`): reports its frames and state, and
 * reconnects when it is lost. Independent of jobs and pages.
 */
import { decode, encode } from "@msgpack/msgpack";

export type ChannelState = "connecting" | "connected" | "lost";

const PROTOCOL = "katz.msgpack";
const PING_INTERVAL_MS = 10_000;
/**
 * Unanswered pings until the channel counts as lost. Pings are counted because a clock may be
 * reset.
 */
const MAX_MISSED_PINGS = 2;
const MIN_RETRY_MS = 200;
const MAX_RETRY_MS = 5_000;

export class Channel {
  private socket: WebSocket | null = null;
  private wait = MIN_RETRY_MS;
  private unheard = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pinging: ReturnType<typeof setInterval> | undefined;
  private closed = false;

  constructor(
    private readonly client: string,
    private readonly onFrame: (frame: unknown) => void,
    private readonly onState: (state: ChannelState) => void,
  ) {
    this.connect();
    document.addEventListener("visibilitychange", this.wake);
    window.addEventListener("online", this.wake);
  }

  close(): void {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.wake);
    window.removeEventListener("online", this.wake);
    clearTimeout(this.timer);
    this.forget();
  }

  private readonly wake = (): void => {
    if (document.visibilityState === "visible" && this.socket?.readyState !== WebSocket.OPEN) {
      this.wait = MIN_RETRY_MS;
      clearTimeout(this.timer);
      this.connect();
    }
  };

  private connect(): void {
    this.forget();
    this.onState("connecting");
    const address = new URL("ws", document.baseURI);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    address.searchParams.set("clientId", this.client);
    const socket = new WebSocket(address, PROTOCOL);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.unheard = 0;
    socket.onopen = () => {
      this.wait = MIN_RETRY_MS;
      this.onState("connected");
    };
    socket.onmessage = (message: MessageEvent<unknown>) => {
      this.unheard = 0;
      if (message.data instanceof ArrayBuffer) this.onFrame(decode(message.data));
    };
    socket.onclose = () => this.lost(socket);
    this.pinging = setInterval(() => {
      if (this.unheard >= MAX_MISSED_PINGS) return this.lost(socket);
      this.unheard += 1;
      if (socket.readyState === WebSocket.OPEN) socket.send(encode({ type: "ping" }));
    }, PING_INTERVAL_MS);
  }

  private lost(socket: WebSocket): void {
    if (socket !== this.socket || this.closed) return;
    this.forget();
    this.onState("lost");
    this.timer = setTimeout(() => this.connect(), this.wait * (0.8 + 0.4 * Math.random()));
    this.wait = Math.min(2 * this.wait, MAX_RETRY_MS);
  }

  private forget(): void {
    clearInterval(this.pinging);
    const socket = this.socket;
    this.socket = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }
}
