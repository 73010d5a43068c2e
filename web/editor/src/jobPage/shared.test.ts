import { expect, test } from "vitest";
import { sharedJob } from "./shared";

test("P1.22 a job is read as any client sees it, with the values of its nodes", () => {
  const image = { filename: "a.png", subfolder: "", type: "output" };
  const prompt = {
    "5": {
      class_type: "KSampler",
      inputs: { seed: 7, model: ["1", 0] },
      _meta: { title: "Paint" },
    },
    "9": { class_type: "SaveImage" },
  };
  expect(
    sharedJob({
      status: "completed",
      create_time: 1,
      outputs: { "9": { images: [image], text: ["done"] } },
      workflow: { prompt },
    }),
  ).toMatchObject({
    status: "completed",
    over: true,
    started: 0,
    pictures: [image],
    texts: ["done"],
    nodes: [
      { id: "5", title: "Paint", values: [["seed", "7"]] },
      { id: "9", title: "SaveImage", values: [] },
    ],
  });
  expect(sharedJob({ status: "in_progress" })).toMatchObject({ status: "running", over: false });
});
