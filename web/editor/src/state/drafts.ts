/** Stores unsaved documents as drafts on the server, in addition to the browser's storage. */
import { Refused } from "../server/client";
import { forgetDraft, draftName, readDraft, storeDraft } from "../server/drafts";
import { docOf, type Session, useDocuments } from "./documents";
import { notify, useLive } from "./live";

/** Milliseconds from the first unsaved change to the draft, so that it is stored within 10 s. */
const STORE_DELAY_MS = 8_000;

/** Returns the documents to store, and the saved documents whose drafts to delete. */
export function dueOf(sessions: readonly Session[]): {
  readonly keep: readonly Session[];
  readonly forget: readonly Session[];
} {
  const isSaved = (session: Session) => docOf(session) === session.saved;
  return {
    keep: sessions.filter((one) => !isSaved(one) && one.drafted !== docOf(one)),
    forget: sessions.filter((one) => isSaved(one) && one.draft !== null),
  };
}

export function storeDrafts(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let writing = Promise.resolve();
  let warned = false;

  const keep = async (session: Session): Promise<void> => {
    const { id, name, file } = session;
    const doc = docOf(session);
    const draft = await storeDraft({ name, doc, file }, session.draft);
    useDocuments.getState().update(id, { draft, drafted: doc });
  };
  const write = async (): Promise<void> => {
    timer = undefined;
    if (useLive.getState().connection === "lost") return plan(); // the browser still stores it
    const { sessions, closed } = useDocuments.getState();
    const due = dueOf([...sessions, ...closed]);
    try {
      for (const session of due.keep) await keep(session);
      for (const { id, draft } of due.forget) {
        useDocuments.getState().update(id, { draft: null });
        if (draft !== null) await forgetDraft(draft);
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 0) return plan();
      if (!warned) notify(error); // disk full or too many files: shown once
      warned = true;
    }
  };
  const now = () => {
    clearTimeout(timer);
    writing = writing.then(write);
  };
  const plan = () => {
    timer ??= setTimeout(now, STORE_DELAY_MS);
  };
  const unsubscribe = useDocuments.subscribe(({ sessions, closed }) => {
    const { keep: more, forget } = dueOf([...sessions, ...closed]);
    if (more.length + forget.length > 0) plan();
  });
  const hide = () => {
    if (document.visibilityState === "hidden" && timer !== undefined) now();
  };
  document.addEventListener("visibilitychange", hide);
  return () => {
    clearTimeout(timer);
    unsubscribe();
    document.removeEventListener("visibilitychange", hide);
  };
}

/** Opens a draft in a new tab, which continues that draft. */
export async function openDraft(path: string): Promise<void> {
  try {
    const { document, notes, file, draft } = await readDraft(path);
    const { open, update } = useDocuments.getState();
    open(draftName(path), document, notes);
    update(useDocuments.getState().active, { file, draft, saved: {} });
  } catch (error) {
    notify(error);
  }
}
