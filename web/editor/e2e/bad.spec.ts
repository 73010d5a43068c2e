/** Errors around the page: each is reported in one line, and the open document is unchanged. */
import { decode, encode } from "@msgpack/msgpack";
import { expect, type Page } from "@playwright/test";
import { Server, visit } from "./server";
import { downloaded, node, openFile, openTemplate, test } from "./steps";

const alert = (page: Page) => page.getByRole("alert").locator("span");
const run = (page: Page) => page.getByRole("button", { name: "Run", exact: true });

/** Clears the console errors; returns all but those that the browser writes for 4xx responses. */
const withoutRefusals = (troubles: string[]) =>
  troubles.splice(0).filter((told) => !/status of 4\d\d/.test(told));

const latents = (count: number) =>
  JSON.stringify({
    last_node_id: count,
    last_link_id: 0,
    nodes: Array.from({ length: count }, (_, at) => ({
      id: at + 1,
      type: "EmptyLatentImage",
      pos: [240 * (at % 100), 160 * Math.floor(at / 100)],
      size: [220, 120],
      inputs: [],
      outputs: [{ name: "LATENT", type: "LATENT", links: [] }],
      widgets_values: [64, 64, 1],
    })),
    links: [],
    version: 0.4,
  });

test("P0.14 ten files are dropped at once: invalid ones are reported in one line, the others open", async ({
  page,
  troubles,
}) => {
  const dropped = await page.evaluateHandle((good) => {
    const carried = new DataTransfer();
    for (let at = 0; at < 10; at++)
      carried.items.add(new File([at % 3 === 2 ? "{broken" : good], `file${at}.json`));
    return carried;
  }, latents(2));
  await page.locator("main.canvas").dispatchEvent("drop", { dataTransfer: dropped });
  await expect(page.locator(".tab")).toHaveCount(7);
  for (const at of [2, 5, 8]) await expect(alert(page)).toContainText(`file${at}.json: `);
  expect(withoutRefusals(troubles)).toEqual([]);
});

test("P0.14 pasting text without a workflow shows an error and changes no document", async ({
  page,
  troubles,
}) => {
  await openTemplate(page, "Text to image");
  const before = await downloaded(page);
  const paste = (text: string) =>
    page.evaluate((pasted) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", pasted);
      window.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
    }, text);
  await paste("a shopping list");
  await expect(alert(page)).toContainText("neither nodes nor a workflow");
  await paste('{"__proto__": {"x": 1}, "nodes": 7}');
  await expect(alert(page)).toContainText("pasted.json: ");
  await expect(page.locator(".tab")).toHaveCount(1);
  expect(await downloaded(page)).toEqual(before);
  expect(withoutRefusals(troubles)).toEqual([]);
});

test("P0.14 P0.15 a file of 10,001 nodes is refused, one of 10,000 opens", async ({
  page,
  troubles,
}) => {
  await openFile(page, "many.json", latents(10_001));
  await expect(alert(page)).toContainText("10,001 nodes, more than the limit of 10,000", {
    timeout: 30_000,
  });
  expect(withoutRefusals(troubles)).toEqual([]);
  await openFile(page, "enough.json", latents(10_000));
  await expect(page.locator(".tab.active")).toContainText("enough", { timeout: 60_000 });
  await expect(page.locator(".card").first()).toBeVisible({ timeout: 30_000 });
});

test("P0.28 two clicks on Run in one frame queue two jobs; the document shows the last one", async ({
  page,
}) => {
  await openTemplate(page, "Text to image");
  const sent: string[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/prompt")) sent.push(request.postDataJSON().prompt_id);
  });
  await run(page).evaluate((button: HTMLButtonElement) => {
    button.click();
    button.click();
  });
  await expect(page.locator(".toolbar .state")).toContainText("completed in", { timeout: 45_000 });
  expect(new Set(sent).size).toBe(2);
  await expect(node(page, "91").locator(".result img")).toBeVisible();
});

test("P0.30 a full queue refuses a job and says when to retry; the document keeps its last job", async ({
  browser,
}) => {
  const server = new Server(["--queue-limit", "1"]);
  await server.start();
  try {
    const page = await visit(browser, server);
    await openTemplate(page, "Text to image");
    await page.request.post("/katz/queue/pause", { data: {} });
    await run(page).click();
    await expect(page.getByRole("button", { name: "queue 1" })).toBeVisible();
    await run(page).click();
    await expect(alert(page)).toContainText(/full.* \d+ s/);
    await expect(page.locator(".toolbar .state")).toContainText("waiting");
    await page.request.post("/katz/queue/resume", { data: {} });
    await expect(page.locator(".toolbar .state")).toContainText("completed in", {
      timeout: 60_000,
    });
  } finally {
    server.end();
  }
});

for (const [what, broken] of [
  ["is missing", () => Object.defineProperty(window, "indexedDB", { value: undefined })],
  [
    "is full",
    () => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("full", "QuotaExceededError");
      };
    },
  ],
] as const)
  test(`P0.17 browser storage ${what}: the page reports that it cannot store documents, and still works`, async ({
    context,
  }) => {
    const page = await context.newPage();
    await page.addInitScript(broken);
    const errors: string[] = [];
    page.on("pageerror", (error) => errors.push(error.message));
    await page.goto("/");
    await expect(page.getByText("connected", { exact: true })).toBeVisible();
    await openTemplate(page, "Text to image");
    await expect(alert(page)).toContainText("This browser cannot store documents");
    await run(page).click();
    await expect(page.locator(".toolbar .state")).toContainText("completed in", {
      timeout: 45_000,
    });
    expect(errors).toEqual([]);
  });

test("P0.32 a server of another version is reported, and the document stays open", async ({
  page,
}) => {
  let lines = 0;
  let cut: (() => Promise<void>) | undefined;
  await page.routeWebSocket(/\/ws/, (line) => {
    const server = line.connectToServer();
    const upgraded = lines++ > 0;
    cut = () => line.close();
    server.onMessage((message) => {
      const frame = decode(message as Buffer) as { type: string; server: { version: string } };
      if (!upgraded || frame.type !== "snapshot") return line.send(message);
      line.send(Buffer.from(encode({ ...frame, server: { ...frame.server, version: "9.9" } })));
    });
  });
  await page.reload();
  await openTemplate(page, "Text to image");
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  await cut?.();
  await expect(alert(page)).toContainText("the server is version 9.9 now, this page is ");
  await expect(page.locator(".card").first()).toBeVisible();
});

test("P0.32 a silent connection is dropped even if the clock is set back by a day", async ({
  page,
}) => {
  await page.clock.install();
  let lines = 0;
  await page.routeWebSocket(/\/ws/, (line) => {
    const server = line.connectToServer();
    if (lines++ === 0) line.onMessage(() => {}); // pings get lost
    void server;
  });
  await page.reload();
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  await page.clock.setSystemTime(Date.now() - 86_400_000);
  await page.clock.runFor(45_000);
  await expect.poll(() => lines).toBeGreaterThan(1);
});
