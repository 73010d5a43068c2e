/** Holds the server's state: node types, jobs, connection; and the notice for the user. */
import { create } from "zustand";
import { type Catalog, catalogOf } from "../catalog/catalog";
import { type Followed, followed, needed } from "../jobs/followed";
import { type Job, type Jobs, NO_JOBS } from "../jobs/job";
import { reduce, reported, sent, trimmed } from "../jobs/reducer";
import { fieldsOf, textOf } from "../json";
import { Channel, type ChannelState } from "../server/channel";
import { asked, objectInfo, Refused } from "../server/client";
import type { SnapshotFrame } from "../server/generated/messages";
import { report } from "../server/jobs";
import { messageFields } from "../server/messageFields";
import { activeSession, type Session, useDocuments, useFront } from "./documents";
import { useSweep } from "./sweep";

interface Live {
  readonly catalog: Catalog;
  readonly jobs: Jobs;
  readonly connection: ChannelState;
  readonly notice: string;
  /** The server's version as last reported. */
  readonly version: string;
  /** Whether the server requires a token that this browser has not sent. */
  readonly tokenRequired: boolean;
}

export const useLive = create<Live>(() => ({
  catalog: new Map(),
  jobs: NO_JOBS,
  connection: "connecting",
  notice: "",
  version: "",
  tokenRequired: false,
}));

const CLIENT = "katz.client";

/** One client id per browser profile, so that every page shows the same jobs. */
export const clientId = (() => {
  try {
    const known = localStorage.getItem(CLIENT);
    if (known !== null) return known;
    const made = crypto.randomUUID();
    localStorage.setItem(CLIENT, made);
    return made;
  } catch {
    return crypto.randomUUID();
  }
})();

export function connect(): Channel {
  return new Channel(
    clientId,
    (frame) => {
      useLive.setState(({ jobs }) => ({ jobs: reduce(jobs, frame) }));
      compareVersion(frame);
    },
    (connection) => {
      useLive.setState({ connection });
      if (connection === "connected") void refreshCatalog();
      if (connection === "lost") void checkToken();
    },
  );
}

/** Notifies the user once if the server's version differs from this page's. */
function compareVersion(frame: unknown): void {
  const { type, server } = messageFields<SnapshotFrame>(frame);
  if (type !== "snapshot") return;
  const { version: before } = useLive.getState();
  const version = textOf(fieldsOf(server).version);
  if (before !== "" && version !== before)
    notify(`the server is version ${version} now, this page is ${before}: reload it`);
  useLive.setState({ version });
}

/** Reloads the node types, with their lists of models and images. */
export async function refreshCatalog(): Promise<void> {
  try {
    useLive.setState({ catalog: catalogOf(await objectInfo()) });
  } catch (error) {
    notify(error);
  }
}

/** Adds a job that was just sent, and removes old jobs that no document shows. */
export function addSentJob(job: string): void {
  const { sessions, closed } = useDocuments.getState();
  const documents = [...sessions, ...closed];
  const swept = useSweep.getState().started?.runs ?? [];
  const peeked = documents.flatMap(({ peeks }) => Object.values(peeks));
  useLive.setState(({ jobs }) => {
    const shown = new Set([
      ...documents.flatMap(({ runs }) => needed(jobs, runs)),
      ...[...swept, ...peeked].map((one) => one.job),
    ]);
    return { jobs: trimmed(sent(jobs, job, Date.now() / 1000), shown) };
  });
}

export function forgetJob(job: string): void {
  useLive.setState(({ jobs }) => {
    const { [job]: _, ...byId } = jobs.byId;
    return { jobs: { ...jobs, byId } };
  });
}

const UNAUTHORIZED = 401;
const isUnauthorized = (what: unknown) => what instanceof Refused && what.status === UNAUTHORIZED;

/** Sends a request that anyone with the token may make; others also depend on the user's name. */
export async function checkToken(): Promise<void> {
  const tokenRequired = await asked("users").then(() => false, isUnauthorized);
  useLive.setState({ tokenRequired });
}

/** Shows a notice until it is dismissed or replaced. */
export function notify(what: unknown): void {
  if (isUnauthorized(what)) void checkToken();
  useLive.setState({ notice: what instanceof Error ? what.message : String(what) });
}

export function useJob(id: string | null): Job | null {
  return useLive(({ jobs }) => (id === null ? null : (jobs.byId[id] ?? null)));
}

/** Returns whether a job is known. Before the first snapshot, every job counts as known. */
export function isKnown(job: string): boolean {
  const { jobs, version } = useLive.getState();
  return version === "" || job in jobs.byId;
}

const NO_RUNS: readonly string[] = [];

/** Returns the current jobs of a document. */
export function followedBy(session: Session | null | undefined): Followed {
  return followed(useLive.getState().jobs, session?.runs ?? NO_RUNS);
}

/** Reads from the active document's jobs; `read` must return equal objects for equal state. */
export function useFollowed<Value>(read: (own: Followed) => Value): Value {
  const runs = useFront((session) => session.runs, NO_RUNS);
  return useLive(({ jobs }) => read(followed(jobs, runs)));
}

/** Requests the report of an active document's job that ended before this page loaded it. */
export function watchReports(): () => void {
  const asked = new Set<string>();
  const look = () => {
    const { shown: job } = followedBy(activeSession());
    const over = job?.status === "completed" || job?.status === "failed";
    if (job === null || !over || Object.keys(job.plans).length > 0 || asked.has(job.id)) return;
    asked.add(job.id);
    report(job.id, clientId).then(
      (messageFields) => useLive.setState(({ jobs }) => ({ jobs: reported(jobs, messageFields) })),
      () => {}, // reports expire
    );
  };
  const ends = [useDocuments.subscribe(look), useLive.subscribe(look)];
  return () => {
    for (const end of ends) end();
  };
}
