/** Runs documents, opens files, and checks what is edited: what several parts of the page ask for. */
import { withNextSeeds } from "../catalog/seeds";
import { isObject } from "../json";
import { cancel, check, open as openFile, queue, Refused, template } from "../server/client";
import { activeSession, docOf, useDocuments } from "./documents";
import { clientId, noteSent, tell, useLive } from "./live";

const QUIET = 400;

export async function run(front = false): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  const { change, update } = useDocuments.getState();
  if (!session.repeats)
    change(session.id, "next seed", (doc) => withNextSeeds(doc, useLive.getState().catalog));
  const sending = activeSession();
  if (sending === null) return;
  const job = crypto.randomUUID();
  const before = session.job;
  update(session.id, { job, repeats: false });
  noteSent(job);
  try {
    await queue(docOf(sending), job, clientId, front);
  } catch (error) {
    useLive.setState(({ jobs }) => {
      const { [job]: _, ...byId } = jobs.byId;
      return { jobs: { ...jobs, byId } };
    });
    update(session.id, { job: before });
    const answer = error instanceof Refused ? error.answer : {};
    const told = isObject(answer.error) ? answer.error : null;
    if (told !== null)
      update(session.id, {
        checked: {
          error: told,
          nodeErrors: isObject(answer.node_errors) ? answer.node_errors : {},
          notes: [],
        },
      });
    tell(error);
  }
}

export async function stop(): Promise<void> {
  const job = activeSession()?.job;
  if (job) await cancel(job).catch(tell);
}

/** Opens each file in a tab of its own. What cannot be opened leaves a line, and all else alone. */
export async function openFiles(files: Iterable<File>): Promise<void> {
  for (const file of files)
    try {
      const { document, notes } = await openFile(file);
      useDocuments.getState().open(nameOf(file.name), document, notes);
    } catch (error) {
      tell(`${file.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
}

export async function openTemplate(name: string): Promise<void> {
  try {
    useDocuments.getState().open(name, await template(name));
  } catch (error) {
    tell(error);
  }
}

function nameOf(file: string): string {
  return file.replace(/\.(json|png|webp)$/i, "") || "workflow";
}

/** Has the server check the document in front, a moment after its last change. */
export function watchProblems(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let seen: unknown;
  const unsubscribe = useDocuments.subscribe(() => {
    const session = activeSession();
    const doc = session === null ? null : docOf(session);
    if (doc === seen || session === null || doc === null) return;
    seen = doc;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        const checked = await check(doc);
        const now = useDocuments.getState().sessions.find(({ id }) => id === session.id);
        if (now && docOf(now) === doc) useDocuments.getState().update(session.id, { checked });
      } catch {
        // the line's state is shown already
      }
    }, QUIET);
  });
  return () => {
    clearTimeout(timer);
    unsubscribe();
  };
}
