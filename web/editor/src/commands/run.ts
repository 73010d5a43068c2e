/** Runs documents, opens files, and checks documents while they are edited. */
import { withChosenPrompts } from "../catalog/prompts";
import { withNextSeeds } from "../catalog/seeds";
import { type Doc, nodesOf } from "../document/model";
import { changeAll } from "../document/scope";
import { isObject } from "../json";
import {
  cancel,
  check,
  checkedOf,
  open as openFile,
  queue,
  Refused,
  template,
  type QueueOptions,
} from "../server/client";
import { useCanvas } from "../state/canvas";
import { activeSession, docOf, graphOf, type Session, useDocuments } from "../state/documents";
import {
  clientId,
  followedBy,
  forgetJob,
  isKnown,
  addSentJob,
  notify,
  useLive,
} from "../state/live";
import { useSettings } from "../state/settings";

const DEBOUNCE_MS = 400;

interface RunOptions extends QueueOptions {
  /** Whether seeds stay, regardless of their control values. */
  readonly keepSeeds?: boolean;
}

/** Runs only the selected output nodes. */
export function runTo(): void {
  const session = activeSession();
  if (session === null) return;
  const { catalog } = useLive.getState();
  const chosen = useCanvas.getState().selected;
  const outputs = nodesOf(graphOf(session)).filter(
    ({ id, type }) => chosen.has(id) && catalog.get(type)?.isOutput,
  );
  if (outputs.length === 0) return notify("none of the selected nodes is an output");
  void run({ targets: outputs.map(({ id }) => [...session.path, id].join(":")) });
}

export async function run(options: RunOptions = {}): Promise<void> {
  const session = activeSession();
  if (session === null) return;
  const { changeDocument, update } = useDocuments.getState();
  if (!session.repeats && options.keepSeeds !== true)
    changeDocument(session.id, "next seed", (doc) =>
      changeAll(doc, (graph) => withNextSeeds(graph, useLive.getState().catalog)),
    );
  const sending = activeSession();
  if (sending === null) return;
  const job = crypto.randomUUID();
  update(session.id, { runs: [...session.runs.filter(isKnown), job], repeats: false });
  try {
    await send(sending, docOf(sending), job, options);
  } catch (error) {
    withdraw(session.id, job);
    const answer = error instanceof Refused ? error.answer : {};
    const isChecked = isObject(answer.error);
    if (isChecked) update(session.id, { checked: checkedOf(answer) });
    notify(error);
  }
}

/** Sends a document as a job, with alternatives in prompts chosen. Throws if it is refused. */
export async function send(
  { workflow, name }: Session,
  doc: Doc,
  job: string,
  options: RunOptions = {},
): Promise<void> {
  const { catalog } = useLive.getState();
  const sent = changeAll(doc, (graph) => withChosenPrompts(graph, catalog));
  useSettings.getState().name(workflow, name);
  addSentJob(job);
  try {
    await queue({ ...sent, id: workflow }, job, clientId, options);
  } catch (error) {
    forgetJob(job);
    throw error;
  }
}

/** Removes a job that was not queued from its document. */
function withdraw(id: string, job: string): void {
  const { sessions, closed, update } = useDocuments.getState();
  const runs = [...sessions, ...closed].find((session) => session.id === id)?.runs ?? [];
  update(id, { runs: runs.filter((one) => one !== job) });
}

/** Stops the document's running job, else its next one in the queue. */
export async function stop(): Promise<void> {
  const { active } = followedBy(activeSession());
  if (active !== null) await cancel(active.id).catch(notify);
}

/**
 * Opens each file in a new tab. Shows an error for files that cannot be opened, and opens the
 * others.
 */
export async function openFiles(files: Iterable<File>): Promise<void> {
  const lines: string[] = [];
  for (const file of files)
    try {
      const { document, notes } = await openFile(file);
      useDocuments.getState().open(nameOf(file.name), document, notes);
    } catch (error) {
      lines.push(`${file.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  if (lines.length > 0) notify(lines.join("; "));
}

export async function openTemplate(name: string): Promise<void> {
  try {
    useDocuments.getState().open(name, await template(name));
  } catch (error) {
    notify(error);
  }
}

function nameOf(file: string): string {
  return file.replace(/\.(json|png|webp)$/i, "") || "workflow";
}

/** Checks the active document on the server shortly after its last change. */
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
        // the page shows a lost connection already
      }
    }, DEBOUNCE_MS);
  });
  return () => {
    clearTimeout(timer);
    unsubscribe();
  };
}
