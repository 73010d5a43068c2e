import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { planOf } from "./plan";
import { type Box, BEGIN, FINISH, stepOf, variantAt } from "./step";

const FOLDER = new URL("./fixtures/", import.meta.url);
const PLANS = readdirSync(FOLDER).map(
  (name) => [name, planOf(JSON.parse(readFileSync(new URL(name, FOLDER), "utf8")))] as const,
);

function overlap(one: Box, other: Box): boolean {
  return (
    one.x < other.x + other.width &&
    other.x < one.x + one.width &&
    one.y < other.y + other.height &&
    other.y < one.y + one.height
  );
}

test.each(PLANS)("P0.35 each part of %s is drawn exactly once", (_, plan) => {
  for (const [number, variant] of plan.variants.entries()) {
    const step = stepOf(plan, number);
    const computed = [...plan.before, ...variant.segments.flatMap(({ calls }) => calls)].flatMap(
      ({ operations }) => operations,
    );
    expect(step.operations.map(({ id }) => id).sort()).toEqual([...computed].sort());
    expect(step.segments.filter(({ hoisted }) => !hoisted).map(({ name }) => name)).toEqual(
      variant.segments.map(({ name }) => name),
    );
    expect(step.calls).toHaveLength(
      plan.before.length + variant.segments.flatMap(({ calls }) => calls).length,
    );
    expect(step.edges).toHaveLength(plan.beforeEdges.length + variant.edges.length);
    const known = new Set([...step.operations.map(({ key }) => key), BEGIN, FINISH]);
    for (const { source, target } of step.edges) {
      expect(known).toContain(source);
      expect(known).toContain(target);
    }
    const stale = variant.edges.filter((edge) => edge.stale);
    expect(step.edges.filter((edge) => edge.stale)).toHaveLength(stale.length);
  }
});

test.each(PLANS)("P0.35 nothing in %s overlaps, and calls are inside their segments", (_, plan) => {
  const { segments, operations, lanes } = stepOf(plan, 0);
  for (const group of [segments, operations])
    for (const [number, one] of group.entries())
      for (const other of group.slice(number + 1)) expect(overlap(one, other)).toBe(false);
  for (const segment of segments) {
    const lane = lanes.find(({ device }) => device === segment.device);
    expect(segment.y + segment.height).toBeLessThanOrEqual((lane?.y ?? 0) + (lane?.height ?? 0));
  }
});

test("P0.34 values that change devices are transfers that take the time of their link", () => {
  const [, plan] = PLANS.find(([name]) => name === "controlnet_by_hand.json") ?? [];
  if (plan === undefined) throw new Error("no plan");
  const { edges } = stepOf(plan, 0);
  const sent = edges.filter(({ transfer }) => transfer !== null);
  expect(sent.length).toBeGreaterThan(0);
  const [link] = plan.links;
  for (const { transfer, bytes } of sent)
    expect(transfer?.seconds).toBeCloseTo(
      (link?.latency ?? 0) + bytes / (link?.bytesPerSecond ?? 1),
    );
  expect(plan.variants.map(({ evaluations }) => variantAt(plan, evaluations[0] ?? 0))).toEqual([
    0, 1,
  ]);
});
