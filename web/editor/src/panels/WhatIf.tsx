/** Compares plans for other devices, placements, approximations, links or batching. */
import { useState } from "react";
import { run } from "../commands/run";
import { moreText, timeText } from "../plan/model/words";
import { type Choices, type Planned, useActive } from "../state/documents";
import { notify } from "../state/live";
import {
  canRun,
  choiceWords,
  dropTrial,
  planOverridesOf,
  secondsOf,
  showTrial,
  tryPlan,
} from "../state/whatIf";

const MAX_EQUAL_DEVICES = 8;
/** The stage of nodes without a model, which cannot be placed. */
const NODES = "node";

export function WhatIf({ planned }: { readonly planned: Planned }) {
  const session = useActive();
  const [choices, setChoices] = useState<Choices>({});
  const [asking, setAsking] = useState(false);
  const words = choiceWords(choices);
  if (session === null || planned.plans.length === 0) return null;
  const ask = async () => {
    setAsking(true);
    try {
      await tryPlan(session, choices);
    } catch (error) {
      notify(error);
    } finally {
      setAsking(false);
    }
  };
  return (
    <details className="what-if">
      <summary>What if</summary>
      <form
        aria-label="What if"
        onSubmit={(event) => {
          event.preventDefault();
          if (words !== "" && !asking) void ask();
        }}
      >
        <Fields planned={planned} choices={choices} onChange={setChoices} />
        <button type="submit" disabled={words === "" || asking}>
          Plan this setup
        </button>
      </form>
      <Trials planned={planned} session={session.id} />
    </details>
  );
}

function Fields({
  planned: { plans, approximations },
  choices,
  onChange,
}: {
  readonly planned: Planned;
  readonly choices: Choices;
  readonly onChange: (choices: Choices) => void;
}) {
  const known = [...new Set(plans.flatMap(({ devices }) => devices))];
  const named = plans.flatMap(({ cells }) => cells.map(({ stage }) => stage));
  const stages = [...new Set(named)].filter((stage) => stage !== NODES);
  const counts = choices.devices ?? Object.fromEntries(known.map((name) => [name, 1]));
  const places = known.flatMap((name) => alike(name, counts[name] ?? 0));
  const { devices: _, ...withoutDevices } = choices;
  const setCount = (name: string, count: number) => {
    const next = { ...counts, [name]: Math.max(0, Math.min(MAX_EQUAL_DEVICES, count)) };
    const same = known.every((one) => next[one] === 1);
    onChange(same ? withoutDevices : { ...choices, devices: next });
  };
  const setPlace = (stage: string, device: string) => {
    const { place, ...rest } = choices;
    const others = Object.entries(place ?? {}).filter(([one]) => one !== stage);
    const next = Object.fromEntries(device === "" ? others : [...others, [stage, device]]);
    onChange(Object.keys(next).length === 0 ? rest : { ...rest, place: next });
  };
  const set = (name: "allow" | "link" | "batching", value: string | boolean | undefined) => {
    const { [name]: before, ...rest } = choices;
    onChange(value === undefined ? rest : { ...rest, [name]: value });
  };
  return (
    <>
      {known.map((name) => (
        <label key={name}>
          like {name}
          <input
            type="number"
            min={0}
            max={MAX_EQUAL_DEVICES}
            value={counts[name] ?? 0}
            onChange={(event) => setCount(name, event.target.valueAsNumber || 0)}
          />
        </label>
      ))}
      {stages.map((stage) => (
        <label key={stage}>
          {stage.replaceAll("_", " ")}
          <select
            value={choices.place?.[stage] ?? ""}
            onChange={(event) => setPlace(stage, event.target.value)}
          >
            <option value="">anywhere</option>
            {places.map((device) => (
              <option key={device}>{device}</option>
            ))}
          </select>
        </label>
      ))}
      <label>
        allowed
        <select
          value={choices.allow ?? "same"}
          onChange={({ target: { value } }) => set("allow", value === "same" ? undefined : value)}
        >
          <option value="same">as for jobs</option>
          <option value="">nothing</option>
          {approximations.map((name) => (
            <option key={name}>{name}</option>
          ))}
          <option value={approximations.join()}>all of these</option>
        </select>
      </label>
      <label>
        equal calls
        <select
          value={String(choices.batching ?? "same")}
          onChange={({ target: { value } }) =>
            set("batching", value === "same" ? undefined : value === "true")
          }
        >
          <option value="same">as for jobs</option>
          <option value="true">together</option>
          <option value="false">one per branch</option>
        </select>
      </label>
      <label>
        links of
        <input
          placeholder="as measured"
          title="Gbit/s, or Gbit/s,ms, for example 25,0.05; empty: as measured"
          value={choices.link ?? ""}
          onChange={({ target: { value } }) => set("link", value === "" ? undefined : value)}
        />
      </label>
    </>
  );
}

/** Returns the names of `count` devices like the given one. */
function alike(name: string, count: number): readonly string[] {
  return Array.from({ length: count }, (_, at) => (at === 0 ? name : `${name}+${at}`));
}

function Trials({ planned, session }: { readonly planned: Planned; readonly session: string }) {
  const usual = secondsOf(planned.plans);
  return (
    <table className="trials" aria-label="plans side by side">
      <tbody>
        <tr>
          <td>
            <button
              type="button"
              aria-pressed={planned.shown === null}
              onClick={() => showTrial(session, null)}
            >
              as jobs run
            </button>
          </td>
          <td>{timeText(usual)}</td>
          <td />
          <td />
        </tr>
        {planned.trials.map(({ choices, plans, notes }, at) => (
          <tr key={`${at} ${choiceWords(choices)}`}>
            <td>
              <button
                type="button"
                aria-pressed={planned.shown === at}
                disabled={plans.length === 0}
                onClick={() => showTrial(session, at)}
              >
                {choiceWords(choices)}
              </button>
              {notes.map((note) => (
                <p className="remark" key={note}>
                  {note}
                </p>
              ))}
            </td>
            <td>{plans.length > 0 ? timeText(secondsOf(plans)) : "–"}</td>
            <td>{plans.length > 0 && usual > 0 ? moreText(secondsOf(plans) / usual) : ""}</td>
            <td>
              {plans.length > 0 && (
                <button
                  type="button"
                  disabled={!canRun(choices)}
                  title={
                    canRun(choices)
                      ? "A job with these choices"
                      : "Some chosen devices or links do not exist"
                  }
                  onClick={() => void run({ keepSeeds: true, instead: planOverridesOf(choices) })}
                >
                  Run this setup
                </button>
              )}
              <button
                type="button"
                aria-label={`remove ${choiceWords(choices)}`}
                onClick={() => dropTrial(session, at)}
              >
                ×
              </button>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
