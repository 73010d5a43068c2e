/** Plans documents while they are edited, and selects the plan shown over a document. */
import { type Doc, nodesOf } from "../document/model";
import type { Job } from "../jobs/job";
import { isObject, type Json, type JsonObject, listOf } from "../json";
import { type Plan, planOf } from "../plan/model/plan";
import { plan as askForPlan, Refused } from "../server/client";
import { atRest, readInSlices } from "./canvasMotion";
import { activeSession, docOf, type Planned, useDocuments } from "./documents";
import { usePage } from "./page";

const DEBOUNCE_MS = 200;
const RETRY_MS = 1_500;
const UNAVAILABLE = 503;
const NONE: readonly Plan[] = [];
/** The id with which this page requests plans. */
const ASKER = crypto.randomUUID();

/**
 * Returns the plans of a document: the shown trial, else those planned while editing, else those of
 * its job.
 */
export function plansOf(planned: Planned | null | undefined, job: Job | null | undefined) {
  const tried = planned?.shown == null ? undefined : planned.trials[planned.shown];
  if (tried !== undefined) return tried.plans;
  return planned && planned.plans.length > 0 ? planned.plans : plansOfJob(job);
}

const known = new WeakMap<Job["plans"], readonly Plan[]>();

function plansOfJob(job: Job | null | undefined): readonly Plan[] {
  if (!job) return NONE;
  const found = known.get(job.plans) ?? Object.values(job.plans).map(planOf);
  known.set(job.plans, found);
  return found;
}

const LOOKS = ["pos", "size", "title", "color", "bgcolor", "order", "flags", "properties"];

/** Returns the content of a document that a run depends on, without layout and appearance. */
export function workOf(doc: Doc): string {
  const graph = (raw: Json): Json =>
    isObject(raw)
      ? {
          nodes: listOf(raw.nodes).map((node) => (isObject(node) ? plain(node) : node)),
          links: raw.links ?? null,
          inputs: raw.inputs ?? null,
        }
      : raw;
  const inside = isObject(doc.definitions) ? listOf(doc.definitions.subgraphs) : [];
  return JSON.stringify([graph(doc), ...inside.map(graph)], (_, value: unknown) =>
    typeof value === "bigint" ? `${value}n` : value,
  );
}

function plain(node: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(node).filter(([key]) => !LOOKS.includes(key)));
}

function plannedOf(id: string): Planned | null {
  const { sessions, closed } = useDocuments.getState();
  return [...sessions, ...closed].find((session) => session.id === id)?.planned ?? null;
}

/** Plans the active document shortly after its last change; a newer change cancels a request. */
export function watchPlans(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let asking: AbortController | undefined;
  let seen: unknown;
  const ask = async (session: string, doc: Doc): Promise<void> => {
    asking?.abort();
    const work = workOf(doc);
    const { update } = useDocuments.getState();
    const before = plannedOf(session);
    const old = before?.work !== work;
    if (before !== null && before.old !== old) update(session, { planned: { ...before, old } });
    if (!old) return;
    const { signal } = (asking = new AbortController());
    try {
      // a plan of a large graph has megabytes
      const { plans: described, ...more } = await askForPlan(
        doc,
        ASKER,
        {},
        { signal, ready: atRest },
      );
      const plans = await readInSlices(described, planOf);
      if (signal.aborted) return;
      update(session, { planned: { work, plans, ...more, old: false, trials: [], shown: null } });
    } catch (error) {
      const busy = error instanceof Refused && error.status === UNAVAILABLE && !signal.aborted;
      if (busy && doc === seen) timer = setTimeout(() => void ask(session, doc), RETRY_MS);
    }
  };
  const look = () => {
    const session = activeSession();
    const doc = session === null ? null : docOf(session);
    if (session === null || doc === null || !usePage.getState().overlay || doc === seen) return;
    seen = doc;
    clearTimeout(timer);
    if (nodesOf(doc).length > 0) timer = setTimeout(() => void ask(session.id, doc), DEBOUNCE_MS);
  };
  const ends = [useDocuments.subscribe(look), usePage.subscribe(look)];
  return () => {
    clearTimeout(timer);
    asking?.abort();
    for (const end of ends) end();
  };
}
