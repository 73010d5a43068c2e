/** Saves documents on the server, and opens, renames and deletes saved ones. */
import { keepVersion, moveVersions } from "../server/versions";
import {
  Conflict,
  moveWorkflow,
  readWorkflow,
  type StoredWorkflow,
  storeWorkflow,
  trashWorkflow,
} from "../server/workflows";
import { activeSession, docOf, useDocuments } from "../state/documents";
import { notify } from "../state/live";
import { usePage } from "../state/page";

const ENDING = ".json";

export function nameOf(path: string): string {
  return (path.split("/").at(-1) ?? path).replace(/\.json$/, "");
}

/**
 * Saves a document to its file, or asks for a name if it has none. Each save waits for the previous
 * one, which returns the version to overwrite.
 */
export function save(): Promise<void> {
  const id = activeSession()?.id;
  return (underWay = underWay.then(async () => {
    const session = useDocuments.getState().sessions.find((one) => one.id === id);
    if (session === undefined) return;
    if (session.file === null) return usePage.setState({ dialog: "save-as" });
    await store(session.file.path, session.file, session);
  }));
}

let underWay: Promise<void> = Promise.resolve();

export async function saveAs(name: string): Promise<void> {
  await store(name.endsWith(ENDING) ? name : name + ENDING, null);
}

/** `replaces`: the version to overwrite. */
export async function store(
  path: string,
  replaces: StoredWorkflow | null,
  session = activeSession(),
): Promise<void> {
  if (session === null) return;
  const doc = docOf(session);
  try {
    if (replaces !== null && session.saved !== doc) await keepVersion(path, session.saved);
    const file = await storeWorkflow(path, doc, replaces);
    useDocuments.getState().update(session.id, { file, name: nameOf(file.path), saved: doc });
    notify(`saved as ${file.path}`);
  } catch (error) {
    if (error instanceof Conflict) usePage.setState({ conflict: error });
    else notify(error);
  }
}

/** Opens a saved workflow in a new tab, or shows its open tab. */
export async function openStored(path: string): Promise<void> {
  const { sessions, open, show, update } = useDocuments.getState();
  const there = sessions.find(({ file }) => file?.path === path);
  if (there !== undefined) return show(there.id);
  try {
    const { document, notes, file } = await readWorkflow(path);
    open(nameOf(path), document, notes);
    update(useDocuments.getState().active, { file });
  } catch (error) {
    notify(error);
  }
}

/** Replaces the document by the server's version, as a step that can be undone. */
export async function takeTheirs(path: string): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  try {
    const { document, file } = await readWorkflow(path);
    const { changeDocument, update } = useDocuments.getState();
    changeDocument(session.id, "take the server's version", () => document);
    update(session.id, { file, saved: document });
  } catch (error) {
    notify(error);
  }
}

/** Renames a file after pending saves. The next save waits for it and uses the new name. */
export function renameStored(path: string, name: string): Promise<void> {
  const renaming = underWay.then(() => rename(path, name));
  underWay = renaming.catch(() => undefined);
  return renaming;
}

async function rename(path: string, name: string): Promise<void> {
  const to = name.endsWith(ENDING) ? name : name + ENDING;
  const file = await moveWorkflow(path, to);
  await moveVersions(path, file.path).catch(notify); // the file is already renamed
  for (const session of useDocuments.getState().sessions)
    if (session.file?.path === path)
      useDocuments.getState().update(session.id, { file, name: nameOf(to) });
}

/** Moves a saved workflow to the trash. Tabs that show it keep their document. */
export async function removeStored(path: string): Promise<void> {
  await trashWorkflow(path);
  for (const session of useDocuments.getState().sessions)
    if (session.file?.path === path)
      useDocuments.getState().update(session.id, { file: null, saved: {} });
}
