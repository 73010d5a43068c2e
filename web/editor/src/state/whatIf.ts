/** Plans the active document with other choices than jobs have. */
import { type Plan, planOf } from "../plan/model/plan";
import { type PlanOverrides, plan as askForPlan } from "../server/client";
import { type Choices, docOf, type Planned, type Session, useDocuments } from "./documents";

export const MAX_TRIALS = 8;
const ASKER = crypto.randomUUID();

/** Returns the choices in the form of the server's request. */
export function planOverridesOf({ devices, place, allow, link, batching }: Choices): PlanOverrides {
  const many = Object.entries(devices ?? {}).filter(([, count]) => count > 0);
  return {
    ...(devices && { devices: many.map(([name, count]) => name + (count > 1 ? `*${count}` : "")) }),
    ...(place && { place: Object.entries(place).map(([stage, device]) => `${stage}=${device}`) }),
    ...(allow !== undefined && { allow }),
    ...(link !== undefined && { link }),
    ...(batching !== undefined && { batching }),
  };
}

/** Returns whether a job can run with these choices: on existing devices and links. */
export function canRun({ devices, link }: Choices): boolean {
  return link === undefined && Object.values(devices ?? {}).every((count) => count <= 1);
}

/** Describes the choices that differ from those of jobs. */
export function choiceWords(choices: Choices): string {
  const { devices = [], place = [], allow, link, batching } = planOverridesOf(choices);
  const words = [
    devices.join(" + ").replaceAll("*", " × "),
    ...place.map((one) => one.replace("=", " on ")),
    allow === undefined ? "" : `allows ${allow || "nothing"}`,
    link === undefined ? "" : `links of ${link}`,
    batching === undefined ? "" : batching ? "equal calls together" : "one call per branch",
  ];
  return words.filter((one) => one !== "").join(", ");
}

/** Returns the predicted seconds of all samplers. */
export function secondsOf(plans: readonly Plan[]): number {
  return plans.reduce((sum, { planned }) => sum + planned, 0);
}

/** Plans with these choices and shows the result, unless the document was edited meanwhile. */
export async function tryPlan({ id, planned }: Session, choices: Choices): Promise<void> {
  const found = useDocuments.getState().sessions.find((session) => session.id === id);
  if (found === undefined || planned === null) return;
  const { plans, notes } = await askForPlan(docOf(found), ASKER, planOverridesOf(choices));
  const made = { choices, plans: plans.map(planOf), notes };
  change(id, (now) => {
    if (now.work !== planned.work) return now;
    const trials = [...now.trials, made].slice(-MAX_TRIALS);
    return { ...now, trials, shown: made.plans.length > 0 ? trials.length - 1 : now.shown };
  });
}

/** Shows a trial over the document; null for the plan that jobs use. */
export function showTrial(session: string, shown: number | null): void {
  change(session, (now) => ({ ...now, shown }));
}

export function dropTrial(session: string, place: number): void {
  change(session, (now) => ({
    ...now,
    trials: now.trials.filter((_, at) => at !== place),
    shown: now.shown === null || now.shown === place ? null : now.shown - Number(now.shown > place),
  }));
}

function change(id: string, by: (planned: Planned) => Planned): void {
  const { sessions, update } = useDocuments.getState();
  const planned = sessions.find((session) => session.id === id)?.planned;
  if (planned) update(id, { planned: by(planned) });
}
