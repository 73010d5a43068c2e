import { expect, test } from "vitest";
import { begin, record, stepsAround, undo } from "./history";

test("P1.12 steps are listed by name around the current one", () => {
  const made = ["add KSampler", "set cfg", "move"].reduce(
    (history, label, at) => record(history, { at }, label, "", at === 2 ? ["7"] : []),
    begin({}),
  );
  const back = undo(undo(made));
  expect(stepsAround(back)).toEqual({
    steps: [
      { label: "open", path: [], by: -1 },
      { label: "add KSampler", path: [], by: 0 },
      { label: "set cfg", path: [], by: 1 },
      { label: "move", path: ["7"], by: 2 },
    ],
    earlier: 0,
    later: 0,
  });
  expect(stepsAround(made, 1)).toMatchObject({ earlier: 2, later: 0 });
  expect(stepsAround(made, 1).steps.map(({ by }) => by)).toEqual([-1, 0]);
});
