/** Holds the open documents, each with its own history, jobs and problems. */
import { create } from "zustand";
import { begin, type History, record, redo, undo } from "../document/history";
import { type Doc, nodesOf } from "../document/model";
import { changeAt, graphAt, type Path } from "../document/scope";
import { textOf } from "../json";
import type { Plan } from "../plan/model/plan";
import type { Checked } from "../server/client";
import type { TextSizes } from "../server/tokenCounts";
import type { StoredWorkflow } from "../server/workflows";

/** The plans of a document. */
export interface Planned {
  /** The content of the document that the plans depend on. */
  readonly work: string;
  readonly plans: readonly Plan[];
  readonly notes: readonly string[];
  /** The names of approximations that plans may allow. */
  readonly approximations: readonly string[];
  /** Whether the document has changed since. */
  readonly old: boolean;
  /** The plans tried with other choices. */
  readonly trials: readonly Trial[];
  /** The index of the trial shown over the document; null for the plan that jobs use. */
  readonly shown: number | null;
}

/** Plans for devices, limits or batching other than those of jobs. */
export interface Trial {
  readonly choices: Choices;
  readonly plans: readonly Plan[];
  readonly notes: readonly string[];
}

/** Overrides for a plan; omitted ones are as for jobs. */
export interface Choices {
  /** The number of devices like each named one. */
  readonly devices?: Readonly<Record<string, number>>;
  /** The device of each pinned stage. */
  readonly place?: Readonly<Record<string, string>>;
  readonly allow?: string;
  readonly link?: string;
  readonly batching?: boolean;
}

/** The content of a document when its last job was sent, or when running on change started. */
export interface Sent {
  readonly job: string | undefined;
  readonly work: string;
}

/** A peeked output, shown at its node. */
export interface Peek {
  readonly job: string;
  /** The preview node in the job. */
  readonly node: string;
  readonly label: string;
  /** The content that the job depended on. */
  readonly work: string;
}

export interface Session {
  readonly id: string;
  /** The workflow id stored in images: the file's id, else one stored with the session. */
  readonly workflow: string;
  readonly name: string;
  /** The file on the server and its known version. */
  readonly file: StoredWorkflow | null;
  /** The draft on the server while the document is unsaved. */
  readonly draft: StoredWorkflow | null;
  /** The document that this page last stored as a draft. */
  readonly drafted: Doc | null;
  readonly history: History;
  /** The path of the graph in view. */
  readonly path: Path;
  /** The document as last opened or saved. */
  readonly saved: Doc;
  /** The ids of its jobs in the order of submission; `followed` decides which one is shown. */
  readonly runs: readonly string[];
  /** Peeked outputs by their node. */
  readonly peeks: Readonly<Record<string, Peek>>;
  /** Whether the next run uses the same seeds, as for a newly opened document. */
  readonly repeats: boolean;
  /** The content last sent, for a document that runs after each change; null for others. */
  readonly reruns: Sent | null;
  readonly notes: readonly string[];
  readonly checked: Checked | null;
  readonly planned: Planned | null;
  /** The known token counts of its prompts. */
  readonly texts: TextSizes;
}

interface Documents {
  readonly sessions: readonly Session[];
  readonly active: string;
  /** The closed sessions, newest last. */
  readonly closed: readonly Session[];
  readonly reopen: () => void;
  /** Moves a tab by a number of places. */
  readonly reorder: (id: string, by: number) => void;
  readonly open: (name: string, doc: Doc, notes?: readonly string[]) => void;
  readonly restore: (sessions: readonly Session[], active: string) => void;
  readonly close: (id: string) => void;
  readonly show: (id: string) => void;
  /** Changes the graph in view. Changes of one gesture form one step. */
  readonly change: (id: string, label: string, edit: (graph: Doc) => Doc, gesture?: string) => void;
  readonly changeDocument: (id: string, label: string, edit: (doc: Doc) => Doc) => void;
  readonly undo: (id: string) => void;
  readonly redo: (id: string) => void;
  /** Undoes or redoes several steps. */
  readonly travel: (id: string, by: number) => void;
  /** Changes fields of a session, also of a closed one. */
  readonly update: (id: string, part: Partial<Omit<Session, "id" | "history">>) => void;
}

const MAX_CLOSED = 20;

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
          closed: [...closed, ...gone].slice(-MAX_CLOSED),
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

/** Brings a graph into view, or the root if it no longer exists. */
function inView(session: Session, path: Path): Session {
  return { ...session, path: graphAt(docOf(session), path) === null ? [] : path };
}

/** Returns whether a document is empty and unused; opening another one replaces it. */
function isUntouched({ history }: Session): boolean {
  const { past, future, present } = history;
  return past.length + future.length + nodesOf(present.doc).length === 0;
}

export function docOf(session: Session): Doc {
  return session.history.present.doc;
}

/** Returns the graph in view. */
export function graphOf(session: Session): Doc {
  return graphAt(docOf(session), session.path) ?? docOf(session);
}

export function useActive(): Session | null {
  return useDocuments(
    ({ sessions, active }) => sessions.find((session) => session.id === active) ?? null,
  );
}

/** Reads from the active document; `read` must return equal objects for equal state. */
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
