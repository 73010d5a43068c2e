import { expect, test } from "vitest";
import { nearestName } from "./nearestName";

test("P0.15 a missing name is shown with its nearest match, if one is close", () => {
  const names = ["sd15/dreamshaper_8.safetensors", "sdxl_base_1.0.safetensors", "v1-5-pruned.ckpt"];
  expect(nearestName("dreamshaper_7.safetensors", names)).toBe(names[0]);
  expect(nearestName("sd_xl_base_1.0.safetensors", names)).toBe(names[1]);
  expect(nearestName("qqq", names)).toBeNull();
  expect(nearestName("x", [])).toBeNull();
});
