import { expect, test } from "vitest";
import { catalogOf } from "../catalog/catalog";
import { fitted } from "./fields";

const TYPE = catalogOf({
  Any: {
    input: {
      required: {
        width: ["INT", { min: 16, max: 1024 }],
        cfg: ["FLOAT", { min: 0, max: 30 }],
        sampler: [["euler", "heun"]],
        other: [["heun", "ddim"]],
        text: ["STRING", {}],
      },
    },
  },
}).get("Any");
const widget = (name: string) => {
  const found = TYPE?.widgets.find((one) => one.name === name);
  if (found === undefined) throw new Error(name);
  return found;
};

test("P1.17 a transferred value is converted to the other field, or refused", () => {
  expect(fitted(7.5, widget("cfg"), widget("width"))).toBe(16);
  expect(fitted(768, widget("width"), widget("cfg"))).toBe(30);
  expect(fitted(768, widget("width"), widget("text"))).toBeNull();
  expect(fitted("heun", widget("sampler"), widget("other"))).toBe("heun");
  expect(fitted("euler", widget("sampler"), widget("other"))).toBeNull();
  expect(fitted("a", widget("text"), widget("text"))).toBe("a");
});
