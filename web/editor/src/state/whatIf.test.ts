import { beforeEach, expect, test, vi } from "vitest";
import { plan } from "../server/client";
import { newSession, type Session, useDocuments } from "./documents";
import { plansOf } from "./planning";
import {
  canRun,
  choiceWords,
  dropTrial,
  planOverridesOf,
  MAX_TRIALS,
  showTrial,
  tryPlan,
} from "./whatIf";

vi.mock("../server/client", () => ({ plan: vi.fn() }));

const asked = vi.mocked(plan);
const base = {
  work: "w",
  plans: [],
  notes: [],
  approximations: ["cached-edit"],
  old: false,
  trials: [],
  shown: null,
};

function session(): Session {
  const [found] = useDocuments.getState().sessions;
  if (found === undefined) throw new Error("no document");
  return found;
}

beforeEach(() => {
  const made = { ...newSession("a", { nodes: [] }), planned: base };
  useDocuments.setState({ sessions: [made], active: made.id });
  asked.mockReset();
  asked.mockResolvedValue({ plans: [{ sampler: "5" }], notes: [], approximations: [] });
});

test("choices are requested in the form of the command line", () => {
  const choices = {
    devices: { "cpu:0": 2, "cpu:1": 1, "cpu:2": 0 },
    place: { controlnet: "cpu:1" },
    allow: "",
    batching: false,
  };
  expect(planOverridesOf(choices)).toEqual({
    devices: ["cpu:0*2", "cpu:1"],
    place: ["controlnet=cpu:1"],
    allow: "",
    batching: false,
  });
  expect(choiceWords(choices)).toBe(
    "cpu:0 × 2 + cpu:1, controlnet on cpu:1, allows nothing, one call per branch",
  );
  expect(planOverridesOf({})).toEqual({});
  expect(canRun(choices)).toBe(false);
  expect(canRun({ devices: { "cpu:0": 0, "cpu:1": 1 }, batching: true })).toBe(true);
  expect(canRun({ link: "10" })).toBe(false);
});

test("a trial is shown over the document until another is selected", async () => {
  await tryPlan(session(), { batching: true });
  await tryPlan(session(), { batching: false });
  expect(session().planned?.shown).toBe(1);
  expect(plansOf(session().planned, null).map(({ sampler }) => sampler)).toEqual(["5"]);
  showTrial(session().id, null);
  expect(plansOf(session().planned, null)).toEqual([]);
  showTrial(session().id, 1);
  dropTrial(session().id, 0);
  expect(session().planned).toMatchObject({ shown: 0, trials: [{ choices: { batching: false } }] });
  dropTrial(session().id, 0);
  expect(session().planned).toMatchObject({ shown: null, trials: [] });
});

test("a trial of an earlier graph is dropped, and one without a plan is not shown", async () => {
  const before = session();
  useDocuments.getState().update(before.id, { planned: { ...base, work: "other" } });
  await tryPlan(before, { batching: true });
  expect(session().planned?.trials).toEqual([]);
  asked.mockResolvedValue({ plans: [], notes: ["no stage"], approximations: [] });
  await tryPlan(session(), { place: { nothing: "cpu" } });
  expect(session().planned).toMatchObject({ shown: null, trials: [{ notes: ["no stage"] }] });
});

test("the number of trials is limited", async () => {
  for (let one = 0; one < MAX_TRIALS + 3; one++) await tryPlan(session(), { link: `${one}` });
  expect(session().planned?.trials).toHaveLength(MAX_TRIALS);
  expect(session().planned?.trials.at(-1)?.choices.link).toBe(`${MAX_TRIALS + 2}`);
});
