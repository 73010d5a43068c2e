/** Keeps all open documents in the browser, so that a reload or a crash loses nothing. */
import { get, set } from "idb-keyval";
import { begin } from "../document/history";
import type { Doc } from "../document/model";
import { docOf, newSession, useDocuments } from "./documents";
import { tell } from "./live";

const KEY = "katz.open";
const WAIT = 500;

interface Kept {
  readonly active: number;
  readonly documents: readonly {
    readonly name: string;
    readonly doc: Doc;
    readonly saved: boolean;
    readonly job: string | null;
    readonly repeats: boolean;
  }[];
}

export async function restore(): Promise<number> {
  const kept = await get<Kept>(KEY).catch(() => undefined);
  if (kept === undefined || kept.documents.length === 0) return 0;
  const sessions = kept.documents.map(({ name, doc, saved, job, repeats }) => ({
    ...newSession(name, doc),
    history: begin(doc),
    saved: saved ? doc : {},
    job,
    repeats,
  }));
  useDocuments.getState().restore(sessions, sessions[kept.active]?.id ?? sessions[0]?.id ?? "");
  return sessions.length;
}

export function keepOpen(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let warned = false;
  const write = () => {
    const { sessions, active } = useDocuments.getState();
    const kept: Kept = {
      active: sessions.findIndex(({ id }) => id === active),
      documents: sessions.map((session) => ({
        name: session.name,
        doc: docOf(session),
        saved: session.saved === docOf(session),
        job: session.job,
        repeats: session.repeats,
      })),
    };
    set(KEY, kept).catch(() => {
      if (!warned) tell("the browser keeps nothing here: download what is to stay");
      warned = true;
    });
  };
  const unsubscribe = useDocuments.subscribe(() => {
    clearTimeout(timer);
    timer = setTimeout(write, WAIT);
  });
  const hide = () => {
    if (document.visibilityState === "hidden") write();
  };
  document.addEventListener("visibilitychange", hide);
  return () => {
    clearTimeout(timer);
    unsubscribe();
    document.removeEventListener("visibilitychange", hide);
  };
}
