/** Saves documents on the server, and opens, renames and removes what was saved. */
import { keepVersion, moveVersions } from "../server/versions";
import {
  Conflict,
  moveWorkflow,
  readWorkflow,
  type StoredWorkflow,
  storeWorkflow,
  trashWorkflow,
} from "../server/workflows";
import { activeSession, docOf, useDocuments } from "./documents";
import { tell } from "./live";
import { usePage } from "./page";

const ENDING = ".json";

export function nameOf(path: string): string {
  return (path.split("/").at(-1) ?? path).replace(/\.json$/, "");
}

/** Saves under the name that the document has on the server; asks for one where it has none. One
 * saving waits for the other, which gives the version that may be overwritten.
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

/** `replaces`: the version that may be overwritten. */
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
    tell(`saved as ${file.path}`);
  } catch (error) {
    if (error instanceof Conflict) usePage.setState({ conflict: error });
    else tell(error);
  }
}

/** Opens a saved workflow in a tab of its own, or brings its tab to the front. */
export async function openStored(path: string): Promise<void> {
  const { sessions, open, show, update } = useDocuments.getState();
  const there = sessions.find(({ file }) => file?.path === path);
  if (there !== undefined) return show(there.id);
  try {
    const { document, notes, file } = await readWorkflow(path);
    open(nameOf(path), document, notes);
    update(useDocuments.getState().active, { file });
  } catch (error) {
    tell(error);
  }
}

/** Takes what the server has in place of the document, as a step that can be undone. */
export async function takeTheirs(path: string): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  try {
    const { document, file } = await readWorkflow(path);
    const { changeDocument, update } = useDocuments.getState();
    changeDocument(session.id, "take the server's version", () => document);
    update(session.id, { file, saved: document });
  } catch (error) {
    tell(error);
  }
}

/** Waits for a saving that is under way, and the next saving for it: it asks for the new name then. */
export function renameStored(path: string, name: string): Promise<void> {
  const renaming = underWay.then(() => rename(path, name));
  underWay = renaming.catch(() => undefined);
  return renaming;
}

async function rename(path: string, name: string): Promise<void> {
  const to = name.endsWith(ENDING) ? name : name + ENDING;
  const file = await moveWorkflow(path, to);
  await moveVersions(path, file.path).catch(tell); // the file is renamed, with or without them
  for (const session of useDocuments.getState().sessions)
    if (session.file?.path === path)
      useDocuments.getState().update(session.id, { file, name: nameOf(to) });
}

/** Moves a saved workflow to the trash; a tab that shows it keeps its document. */
export async function removeStored(path: string): Promise<void> {
  await trashWorkflow(path);
  for (const session of useDocuments.getState().sessions)
    if (session.file?.path === path)
      useDocuments.getState().update(session.id, { file: null, saved: {} });
}
