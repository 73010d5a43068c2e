/** Stores all open documents in the browser, so that a reload or crash loses nothing. */
import { del, entries, set } from "idb-keyval";
import { begin } from "../document/history";
import type { Doc } from "../document/model";
import type { StoredWorkflow } from "../server/workflows";
import { docOf, newSession, useDocuments } from "./documents";
import { notify } from "./live";

const KEY = "katz.open.";
const WINDOW = "katz.window";
const STORE_INTERVAL_MS = 500;

interface StoredDocuments {
  readonly active: number;
  readonly documents: readonly {
    readonly name: string;
    readonly workflow?: string; // absent in data of older versions
    readonly file: StoredWorkflow | null;
    readonly draft?: StoredWorkflow | null; // absent in data of older versions
    readonly doc: Doc;
    readonly saved: boolean;
    readonly job?: string | null; // in data of older versions, instead of `runs`
    readonly runs?: readonly string[];
    readonly repeats: boolean;
  }[];
}

/**
 * Restores the documents of this window and of windows that no longer exist. Returns their number.
 */
export async function restore(): Promise<number> {
  own = await claimed();
  const found: StoredDocuments[] = [];
  try {
    const alive = await windows();
    for (const [key, stored] of await entries<string, StoredDocuments>()) {
      const id = String(key).startsWith(KEY) ? String(key).slice(KEY.length) : null;
      if (id === null || (id !== own && alive.has(id))) continue;
      if (id === own) found.unshift(stored);
      else {
        found.push(stored);
        await del(key);
      }
    }
  } catch {
    return 0; // without browser storage, nothing to restore
  }
  const sessions = found.flatMap(({ documents }) =>
    documents.map(({ name, workflow, file, draft = null, doc, saved, job, runs, repeats }) => ({
      ...newSession(name, doc),
      ...(workflow && { workflow }),
      file,
      draft,
      history: begin(doc),
      saved: saved ? doc : {},
      runs: runs ?? (job ? [job] : []),
      repeats,
    })),
  );
  if (sessions.length === 0) return 0;
  const front = sessions[found[0]?.active ?? 0] ?? sessions[0];
  useDocuments.getState().restore(sessions, front?.id ?? "");
  return sessions.length;
}

let own = "";

/** Returns an id for this window that survives a reload and that no other open window has. */
async function claimed(): Promise<string> {
  const known = sessionStorage.getItem(WINDOW);
  const id = known !== null && (await lock(known)) ? known : crypto.randomUUID();
  if (id !== known) {
    sessionStorage.setItem(WINDOW, id);
    await lock(id);
  }
  return id;
}

/** Holds a lock until the window closes. Returns false if another window holds it. */
function lock(id: string): Promise<boolean> {
  if (!("locks" in navigator)) return Promise.resolve(true); // insecure context
  return new Promise((resolve) => {
    void navigator.locks.request(KEY + id, { ifAvailable: true }, (held) => {
      resolve(held !== null);
      return held === null ? undefined : new Promise(() => {});
    });
  });
}

async function windows(): Promise<ReadonlySet<string>> {
  if (!("locks" in navigator)) return new Set();
  const { held = [] } = await navigator.locks.query();
  return new Set(
    held.flatMap(({ name }) => (name?.startsWith(KEY) ? [name.slice(KEY.length)] : [])),
  );
}

/** Async, so that a browser without storage rejects instead of throwing. */
async function store(stored: StoredDocuments): Promise<void> {
  await set(KEY + own, stored);
}

/**
 * Stores changes at most every `STORE_INTERVAL_MS`. It does not wait for a pause, so that continuous
 * editing loses no more than that.
 */
export function storeOpenDocuments(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let warned = false;
  let written = "";
  let parts: readonly unknown[] = [];
  const write = () => {
    clearTimeout(timer);
    timer = undefined;
    const { sessions, active } = useDocuments.getState();
    const documents: StoredDocuments["documents"] = sessions.map((session) => ({
      name: session.name,
      workflow: session.workflow,
      file: session.file,
      draft: session.draft,
      doc: docOf(session),
      saved: session.saved === docOf(session),
      runs: session.runs,
      repeats: session.repeats,
    }));
    const now = documents.flatMap((one) => Object.values(one));
    const same = now.length === parts.length && now.every((part, at) => part === parts[at]);
    if (same && active === written) return;
    [parts, written] = [now, active];
    const stored: StoredDocuments = {
      active: sessions.findIndex(({ id }) => id === active),
      documents,
    };
    store(stored).catch(() => {
      if (!warned) notify("This browser cannot store documents: download your work");
      warned = true;
    });
  };
  const unsubscribe = useDocuments.subscribe(() => {
    timer ??= setTimeout(write, STORE_INTERVAL_MS);
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
