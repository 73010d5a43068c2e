import { expect, test } from "vitest";
import { catalogOf } from "../catalog/catalog";
import { difference, differenceText } from "./difference";
import { comparedSettings } from "./settings";

test("P1.09 images are compared pixel by pixel", () => {
  const of = (...data: number[]) => ({
    width: data.length / 4,
    height: 1,
    data: new Uint8ClampedArray(data),
  });
  const one = of(10, 20, 30, 255, 1, 1, 1, 255);
  const found = difference(one, of(10, 25, 30, 0, 1, 1, 1, 255), 8);
  expect(found).toMatchObject({ most: 5, share: 0.5 });
  expect([...(found?.pixels ?? [])]).toEqual([0, 40, 0, 255, 0, 0, 0, 255]);
  expect(found && differenceText(found)).toBe("50.0 % of the pixels differ, by 5 of 255 at most");
  const same = difference(one, one, 8);
  expect(same && differenceText(same)).toBe("identical");
  expect(difference(one, of(1, 1, 1, 255), 8)).toBeNull();
});

test("P1.09 settings that differ come first; a setting of only one image has no counterpart", () => {
  const catalog = catalogOf({
    Sampler: { input: { required: { steps: ["INT", {}], cfg: ["FLOAT", {}] } } },
  });
  const node = (id: number, ...values: number[]) => ({
    id,
    type: "Sampler",
    widgets_values: values,
  });
  const rows = comparedSettings(
    { nodes: [node(1, 20, 4)] },
    { nodes: [node(1, 20, 7.5), node(2, 8, 1)] },
    catalog,
  );
  expect(rows.map(({ node: title, name, one, other }) => [title, name, one, other])).toEqual([
    ["Sampler #1", "cfg", "4", "7.5"],
    ["Sampler #2", "steps", null, "8"],
    ["Sampler #2", "cfg", null, "1"],
    ["Sampler #1", "steps", "20", "20"],
  ]);
});
