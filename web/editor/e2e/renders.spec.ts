/** Counts what is rendered in a graph of 1,000 nodes and 1,500 links; measures no times. */
import { expect, type Locator, type Page, type Request } from "@playwright/test";
import { downloaded, node, openFile, openTemplate, test } from "./steps";

const NODES = 1_000;
const LINKS = 1_500;
const COLUMNS = 40;

test.use({ viewport: { width: 1920, height: 1080 } });

/** The number of check and plan requests so far, and those without a response. */
interface Talk {
  asked: number;
  readonly open: Set<Request>;
}

function watchTalk(page: Page): Talk {
  const talk: Talk = { asked: 0, open: new Set() };
  page.on("request", (request) => {
    if (!/\/katz\/(check|plan)$/.test(request.url())) return;
    talk.asked += 1;
    talk.open.add(request);
  });
  page.on("requestfinished", (request) => talk.open.delete(request));
  page.on("requestfailed", (request) => talk.open.delete(request));
  return talk;
}

/**
 * Returns what is rendered until two polls in a row find nothing and no check or plan is pending.
 * `asked`: the minimum number of requests by then.
 */
async function settled(page: Page, talk: Talk, asked = 0): Promise<string[]> {
  const parts: string[] = [];
  let still = 0;
  const look = async () => {
    const more = await rendered(page);
    parts.push(...more);
    still = more.length === 0 && talk.open.size === 0 && talk.asked >= asked ? still + 1 : 0;
    return still;
  };
  await expect.poll(look, { timeout: 45_000 }).toBeGreaterThan(1);
  return parts;
}

/** Opens the template with unused nodes below it, each linked to two others. */
async function openLarge(page: Page, talk: Talk): Promise<void> {
  await openTemplate(page, "Text to image");
  const doc = await downloaded(page);
  const first = 1_000;
  const count = NODES - doc.nodes.length;
  let link = doc.last_link_id;
  const links = [...doc.links];
  const made = Array.from({ length: count }, (_, at) => ({
    id: first + at,
    type: "LatentAdd",
    pos: [260 * (at % COLUMNS), 900 + 130 * Math.floor(at / COLUMNS)],
    size: [210, 60],
    flags: {},
    mode: 0,
    inputs: ["samples1", "samples2"].map((name) => ({
      name,
      type: "LATENT",
      link: null as unknown,
    })),
    outputs: [{ name: "LATENT", type: "LATENT", links: [] as number[] }],
    properties: {},
    widgets_values: [],
  }));
  for (let at = 1; links.length < LINKS; at++) {
    const to = made[1 + (at % (count - 1))];
    const slot = at < count ? 0 : 1;
    const from = made[Math.max(0, 1 + (at % (count - 1)) - 1)];
    if (to === undefined || from === undefined || to.inputs[slot] === undefined) break;
    link += 1;
    to.inputs[slot].link = link;
    from.outputs[0]?.links.push(link);
    links.push([link, from.id, 0, to.id, slot, "LATENT"]);
  }
  const large = { ...doc, nodes: [...doc.nodes, ...made], links, last_link_id: link };
  expect([large.nodes.length, large.links.length]).toEqual([NODES, LINKS]);
  const asked = talk.asked;
  await openFile(page, "large.json", JSON.stringify(large));
  await expect(page.locator(".tab.active")).toContainText("large");
  await expect(node(page, "5")).toBeVisible();
  await expect(page.locator(".card.outlined")).toHaveCount(0, { timeout: 60_000 }); // all are drawn in full
  await settled(page, talk, asked + 2); // checked and planned
}

/** Returns what was rendered since the last call. */
async function rendered(page: Page): Promise<string[]> {
  await page.waitForTimeout(400);
  return page.evaluate(() => {
    const parts = ((window as any).parts ?? []) as string[];
    return parts.splice(0);
  });
}

/** Returns what is rendered while a selected element is dragged, and undoes the drag. */
async function dragged(page: Page, talk: Talk, what: Locator): Promise<ReadonlySet<string>> {
  const box = await what.boundingBox();
  if (box === null) throw new Error("not in view");
  await page.mouse.move(box.x + 2, box.y + 2);
  await page.mouse.down();
  await page.mouse.move(box.x + 4, box.y + 4);
  await settled(page, talk); // the click selects it
  await page.mouse.move(box.x + 60, box.y + 60, { steps: 10 });
  const parts = new Set(await settled(page, talk));
  await page.mouse.up();
  await page.getByRole("main").press("Control+z");
  return parts;
}

async function mounted(page: Page): Promise<Set<string>> {
  const ids = await page
    .locator(".card")
    .evaluateAll((all) => all.map((one) => `node ${(one as HTMLElement).dataset.node}`));
  return new Set(ids);
}

test("P0.01 P0.09 P0.29 in a graph of 1,000 nodes, only changed nodes are rendered", async ({
  page,
}) => {
  await page.addInitScript(() => {
    const parts: string[] = [];
    (window as any).parts = parts;
    (window as any).katzRendered = (part: string) => parts.push(part);
  });
  await page.reload();
  const talk = watchTalk(page);
  await openLarge(page, talk);
  const cards = (all: string[]) => all.filter((part) => part.startsWith("node "));

  await test.step("idle: nothing", async () => {
    await settled(page, talk);
    await page.waitForTimeout(1_000);
    expect(await rendered(page)).toEqual([]);
  });

  await test.step("control: selecting all nodes renders all in view, so the count can fail", async () => {
    const shown = await mounted(page);
    await page.keyboard.press("Control+a");
    expect(new Set(cards(await settled(page, talk))).size).toBeGreaterThanOrEqual(shown.size);
    await page.keyboard.press("Escape");
  });

  await test.step("panning: only new nodes", async () => {
    await settled(page, talk);
    const there = await mounted(page);
    await page.mouse.move(960, 1_060);
    await page.mouse.down({ button: "middle" });
    await page.mouse.move(900, 900, { steps: 12 });
    await page.mouse.up({ button: "middle" });
    const again = cards(await settled(page, talk)).filter((part) => there.has(part));
    expect(again).toEqual([]);
    await page.keyboard.press(".");
    // all become outlines; how soon depends on the machine
    await expect(page.locator(".card.outlined")).toHaveCount(NODES, { timeout: 120_000 });
    await settled(page, talk);
  });

  await test.step("dragging a node at low zoom: no node, and all links as one", async () => {
    // any part of an outline can be dragged
    expect(await dragged(page, talk, node(page, "1500"))).toEqual(new Set(["far links"]));
  });

  await test.step("dragging a node: its links", async () => {
    await node(page, "5").click();
    await page.keyboard.press("Shift+Period"); // at low zoom nodes are outlines
    await expect(node(page, "5").getByLabel("steps")).toBeVisible();
    await settled(page, talk);
    const parts = [...(await dragged(page, talk, node(page, "5").locator(".card-title .name")))];
    const links = parts.filter((part) => part.startsWith("link "));
    expect(parts.filter((part) => !part.startsWith("link "))).toEqual([]);
    expect(links.length).toBeGreaterThan(0);
    expect(links.length).toBeLessThanOrEqual(5);
  });

  await test.step("a keystroke: its widget", async () => {
    await expect(node(page, "2").getByRole("textbox")).toBeVisible();
    await page.keyboard.press("Escape");
    for (const [field, key, id, part] of [
      [node(page, "2").getByRole("textbox"), "x", "2", "2.text"],
      [node(page, "5").getByLabel("steps"), "ArrowUp", "5", "5.steps"],
    ] as const) {
      await field.focus();
      await settled(page, talk);
      const asked = talk.asked;
      await page.keyboard.press(key);
      const parts = await settled(page, talk, asked + 2); // checked and planned again
      const widgets = parts.filter((one) => one.startsWith("widget "));
      expect(new Set(widgets)).toEqual(new Set([`widget ${part}`]));
      expect(new Set(cards(parts))).toEqual(new Set([`node ${id}`]));
    }
  });

  await test.step("progress: the running node", async () => {
    const asked = talk.asked;
    await lengthen(page);
    await settled(page, talk, asked + 2); // checked and planned
    await page.keyboard.press("Control+Enter");
    await expect(page.locator(".toolbar .state")).toContainText("completed in", {
      timeout: 45_000,
    });
    const times = new Map<string, number>();
    for (const part of cards(await rendered(page))) times.set(part, (times.get(part) ?? 0) + 1);
    expect(times.get("node 5")).toBeGreaterThan(10);
    // other nodes: once for the new job; nodes that run, also when they start and end
    times.delete("node 5");
    for (const [part, count] of times)
      expect(count).toBeLessThanOrEqual(Number(part.slice(5)) >= 1_000 ? 1 : 5);
  });
});

/** Sets enough steps to observe the progress. */
async function lengthen(page: Page): Promise<void> {
  const steps = node(page, "5").getByLabel("steps");
  await steps.fill("40");
  await steps.press("Enter");
}

test("P0.01 a moving large graph shows boxes; at rest it is drawn in full, also after interruptions", async ({
  page,
}) => {
  await openLarge(page, watchTalk(page));
  const flow = page.locator(".canvas .react-flow");
  const boxes = page.locator(".places");
  const whole = async () => {
    // a thousand nodes, a few per frame: half a minute without a GPU, more while other tests run
    await expect(flow).not.toHaveClass(/moving/, { timeout: 100_000 });
    await expect(page.locator(".card.outlined")).toHaveCount(0);
  };
  const pan = async () => {
    await page.mouse.move(960, 900);
    await page.mouse.down({ button: "middle" });
    await page.mouse.move(960, 300, { steps: 8 });
  };

  await expect(boxes).toBeHidden();
  const before = await mounted(page);
  await pan();
  await expect(boxes).toBeVisible();
  await page.mouse.up({ button: "middle" });
  await whole();
  await expect(boxes).toBeHidden();
  const after = await mounted(page);
  expect([...after].filter((one) => !before.has(one)).length).toBeGreaterThan(10);

  await test.step("another tab becomes active during the move", async () => {
    await pan();
    const tabs = page.locator(".tabs .tab").locator("button:first-of-type");
    await tabs.first().evaluate((tab: HTMLElement) => tab.click());
    await page.mouse.up({ button: "middle" });
    await tabs.last().click();
    await whole();
  });

  await test.step("the wheel turns just before the move", async () => {
    await page.mouse.wheel(0, 60);
    await pan();
    await expect(boxes).toBeVisible();
    await page.mouse.up({ button: "middle" });
    await whole();
  });
});

test("P0.01 the stand-ins of a large graph that moves at low zoom look like its nodes", async ({
  page,
  context,
}) => {
  // the stand-ins stay long enough for a screenshot
  await page.addInitScript(() => {
    const usual = window.setTimeout;
    (window as any).setTimeout = (go: () => void, after?: number) =>
      usual(go, after === 400 ? 30_000 : after);
  });
  await page.reload();
  const talk = watchTalk(page);
  await openLarge(page, talk);
  await page.keyboard.press(".");
  await expect(page.locator(".card.outlined")).toHaveCount(NODES, { timeout: 120_000 });
  await node(page, "1500").click(); // selects it
  await page.keyboard.press("Control+m");
  await node(page, "1700").click();
  await page.keyboard.press("Control+g");
  await settled(page, talk);
  await page.mouse.move(960, 30);
  const rest = await page.screenshot();

  const flow = page.locator(".canvas .react-flow");
  const view = page.locator(".react-flow__viewport");
  const before = await view.getAttribute("style");
  await page.mouse.move(960, 1_060);
  await page.mouse.down({ button: "middle" });
  await page.mouse.move(900, 1_000, { steps: 5 });
  await page.mouse.move(960, 1_060, { steps: 5 });
  await page.mouse.up({ button: "middle" });
  expect(await view.getAttribute("style")).toBe(before);
  await page.mouse.move(960, 30);
  await expect(flow).toHaveClass(/standing-in/);
  await expect(node(page, "1600")).toBeHidden();
  await expect(page.locator(".standins > *")).toHaveCount(3); // the muted node, the selected node, the group
  const moved = await page.screenshot();
  await page.locator(".places").evaluate((one: SVGElement) => (one.style.visibility = "hidden"));
  const control = await page.screenshot();
  const blank = await context.newPage();
  expect(await unlike(blank, rest, moved)).toBeLessThan(0.005);
  expect(await unlike(blank, rest, control)).toBeGreaterThan(0.05);
  await blank.close();

  await page.mouse.move(800, 600);
  await page.mouse.move(820, 620, { steps: 3 });
  await expect(flow).not.toHaveClass(/standing-in/); // the nodes return when the pointer moves
  await expect(node(page, "1600")).toBeVisible();
  await expect(page.locator(".standins")).toHaveCount(0);
});

/** Returns the share of pixels that differ by more than a shade. */
async function unlike(page: Page, one: Buffer, other: Buffer): Promise<number> {
  return page.evaluate(
    async (pictures) => {
      const [left = [], right = []] = await Promise.all(
        pictures.map(async (picture) => {
          const shown = new Image();
          shown.src = `data:image/png;base64,${picture}`;
          await shown.decode();
          const canvas = new OffscreenCanvas(shown.width, shown.height);
          const drawing = canvas.getContext("2d");
          drawing?.drawImage(shown, 0, 0);
          return drawing?.getImageData(0, 0, shown.width, shown.height).data ?? [];
        }),
      );
      let count = 0;
      for (let at = 0; at < left.length; at += 4) {
        const far = [0, 1, 2].some(
          (part) => Math.abs((left[at + part] ?? 0) - (right[at + part] ?? 0)) > 24,
        );
        if (far) count += 1;
      }
      return (4 * count) / left.length;
    },
    [one.toString("base64"), other.toString("base64")],
  );
}
