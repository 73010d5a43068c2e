/** Holds the open documents: each an island with its own steps, job, and problems. */
import { create } from "zustand";
import { begin, type History, record, redo, undo } from "../document/history";
import { type Doc, nodesOf } from "../document/model";
import { changeAt, graphAt, type Path } from "../document/scope";
import { textOf } from "../json";
import type { Plan } from "../plan/plan";
import type { Checked } from "../server/client";
import type { TextSizes } from "../server/texts";
import type { StoredWorkflow } from "../server/workflows";

/** The plans of a document as it was asked for them. */
export interface Planned {
  /** What of the document they are of. */
  readonly work: string;
  readonly plans: readonly Plan[];
  readonly notes: readonly string[];
  /** Whether the document has changed since. */
  readonly old: boolean;
  /** What might be, as it was tried since. */
  readonly trials: readonly Trial[];
  /** The trial that stands over the document; null for what jobs have. */
  readonly shown: number | null;
}

/** Plans for other devices, limits or batching than jobs have. */
export interface Trial {
  readonly choices: Choices;
  readonly plans: readonly Plan[];
  readonly notes: readonly string[];
}

/** What a plan is made for in place of what jobs have; left out: the same. */
export interface Choices {
  /** Names of devices, and how many like each. */
  readonly devices?: Readonly<Record<string, number>>;
  /** The device of each stage that is pinned. */
  readonly place?: Readonly<Record<string, string>>;
  readonly allow?: string;
  readonly link?: string;
  readonly batching?: boolean;
}

/** What stood in a document when its last job was sent, or when running on change began. */
export interface Sent {
  readonly job: string | undefined;
  readonly work: string;
}

/** What an output gives, as it is shown at its node. */
export interface Peek {
  readonly job: string;
  /** The node of the job that shows it. */
  readonly node: string;
  readonly label: string;
  /** What a run depended on when it was peeked at. */
  readonly work: string;
}

export interface Session {
  readonly id: string;
  /** What pictures say they were run from: the id in the file, else one that is kept beside it. */
  readonly workflow: string;
  readonly name: string;
  /** Where it is saved on the server, and which version of that is known. */
  readonly file: StoredWorkflow | null;
  /** Where it is kept on the server while it is not saved. */
  readonly draft: StoredWorkflow | null;
  /** The document as this page wrote it there last. */
  readonly drafted: Doc | null;
  readonly history: History;
  /** The graph of the document that is in view. */
  readonly path: Path;
  /** The document as it was opened or saved last. */
  readonly saved: Doc;
  /** The ids of its jobs, in the order in which they were sent; `followed` decides which one is shown. */
  readonly runs: readonly string[];
  /** What was peeked at, by the node that gives it. */
  readonly peeks: Readonly<Record<string, Peek>>;
  /** Whether the next run repeats what is there, seeds included, as for one that was just opened. */
  readonly repeats: boolean;
  /** What was sent last of a document that runs after each change; null for one that does not. */
  readonly reruns: Sent | null;
  readonly notes: readonly string[];
  readonly checked: Checked | null;
  readonly planned: Planned | null;
  /** How long its prompts are, as far as that is known. */
  readonly texts: TextSizes;
}

interface Documents {
  readonly sessions: readonly Session[];
  readonly active: string;
  /** The last ones that were closed, the newest last. */
  readonly closed: readonly Session[];
  readonly reopen: () => void;
  /** Moves a tab by so many places. */
  readonly reorder: (id: string, by: number) => void;
  readonly open: (name: string, doc: Doc, notes?: readonly string[]) => void;
  readonly restore: (sessions: readonly Session[], active: string) => void;
  readonly close: (id: string) => void;
  readonly show: (id: string) => void;
  /** Changes the graph in view; steps of one gesture are one step. */
  readonly change: (id: string, label: string, edit: (graph: Doc) => Doc, gesture?: string) => void;
  readonly changeDocument: (id: string, label: string, edit: (doc: Doc) => Doc) => void;
  readonly undo: (id: string) => void;
  readonly redo: (id: string) => void;
  /** Undoes or redoes so many steps at once. */
  readonly travel: (id: string, by: number) => void;
  /** Changes what stands beside a document, of closed ones too. */
  readonly update: (id: string, part: Partial<Omit<Session, "id" | "history">>) => void;
}

const MOST_CLOSED = 20;

export function newSession(name: string, doc: Doc, notes: readonly string[] = []): Session {
  return {
    id: crypto.randomUUID(),
    workflow: textOf(doc.id) || crypto.randomUUID(),
    name,
    file: null,
    draft: null,
    drafted: null,
    history: begin(doc),
    path: [],
    saved: doc,
    runs: [],
    peeks: {},
    repeats: true,
    reruns: null,
    notes,
    checked: null,
    planned: null,
    texts: {},
  };
}

export const useDocuments = create<Documents>((set) => {
  const each = (id: string, change: (session: Session) => Session) =>
    set(({ sessions }) => ({
      sessions: sessions.map((session) => (session.id === id ? change(session) : session)),
    }));
  return {
    sessions: [],
    active: "",
    closed: [],
    reopen: () =>
      set(({ sessions, closed, active }) => {
        const last = closed.at(-1);
        return last === undefined
          ? { active }
          : { sessions: [...sessions, last], closed: closed.slice(0, -1), active: last.id };
      }),
    reorder: (id, by) =>
      set(({ sessions }) => {
        const from = sessions.findIndex((session) => session.id === id);
        const moved = sessions[from];
        const rest = sessions.filter((session) => session.id !== id);
        const to = Math.max(0, Math.min(rest.length, from + by));
        return moved === undefined
          ? { sessions }
          : { sessions: [...rest.slice(0, to), moved, ...rest.slice(to)] };
      }),
    open: (name, doc, notes) =>
      set(({ sessions }) => {
        const session = newSession(name, doc, notes);
        const others = sessions.filter((one) => !isUntouched(one));
        return { sessions: [...others, session], active: session.id };
      }),
    restore: (sessions, active) => set({ sessions, active }),
    close: (id) =>
      set(({ sessions, active, closed }) => {
        const place = sessions.findIndex((session) => session.id === id);
        const rest = sessions.filter((session) => session.id !== id);
        const next = rest[Math.min(place, rest.length - 1)]?.id ?? "";
        const gone = sessions.filter((session) => session.id === id && !isUntouched(session));
        return {
          sessions: rest,
          active: active === id ? next : active,
          closed: [...closed, ...gone].slice(-MOST_CLOSED),
        };
      }),
    show: (id) => set({ active: id }),
    change: (id, label, edit, gesture) =>
      each(id, ({ history, path, ...rest }) => {
        const doc = changeAt(history.present.doc, path, edit);
        return { ...rest, path, history: record(history, doc, label, gesture, path) };
      }),
    changeDocument: (id, label, edit) =>
      each(id, ({ history, path, ...rest }) => {
        const doc = edit(history.present.doc);
        return { ...rest, path, history: record(history, doc, label, "", path) };
      }),
    undo: (id) => each(id, undone),
    redo: (id) => each(id, redone),
    travel: (id, by) =>
      each(id, (session) => {
        let there = session;
        for (let step = 0; step < Math.abs(by); step++)
          there = by < 0 ? undone(there) : redone(there);
        return there;
      }),
    update: (id, part) => {
      const changed = (session: Session) => (session.id === id ? { ...session, ...part } : session);
      set(({ sessions, closed }) => ({
        sessions: sessions.map(changed),
        closed: closed.map(changed),
      }));
    },
  };
});

function undone(session: Session): Session {
  const history = undo(session.history);
  return history === session.history
    ? session
    : inView({ ...session, history }, session.history.present.path);
}

function redone(session: Session): Session {
  const history = redo(session.history);
  return history === session.history
    ? session
    : inView({ ...session, history }, history.present.path);
}

/** Brings a graph into view, or the root where it is gone. */
function inView(session: Session, path: Path): Session {
  return { ...session, path: graphAt(docOf(session), path) === null ? [] : path };
}

/** Tells of an empty document that nobody has done anything with: it gives way. */
function isUntouched({ history }: Session): boolean {
  const { past, future, present } = history;
  return past.length + future.length + nodesOf(present.doc).length === 0;
}

export function docOf(session: Session): Doc {
  return session.history.present.doc;
}

/** The graph in view. */
export function graphOf(session: Session): Doc {
  return graphAt(docOf(session), session.path) ?? docOf(session);
}

export function useActive(): Session | null {
  return useDocuments(
    ({ sessions, active }) => sessions.find((session) => session.id === active) ?? null,
  );
}

/** Reads from the document in front; what it gives must keep its identity. */
export function useFront<Value>(read: (session: Session) => Value, otherwise: Value): Value {
  return useDocuments(({ sessions, active }) => {
    const session = sessions.find((one) => one.id === active);
    return session === undefined ? otherwise : read(session);
  });
}

export function activeSession(): Session | null {
  const { sessions, active } = useDocuments.getState();
  return sessions.find((session) => session.id === active) ?? null;
}
