import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

const CHROMIUM = ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"].find(existsSync);

/** Each worker of Playwright has a server of its own: e2e/serve.sh starts as many, side by side. */
const WORKERS = Number(process.env.KATZ_SERVERS ?? "1");
const PORT =
  Number(process.env.KATZ_PORT ?? "8429") + Number(process.env.TEST_PARALLEL_INDEX ?? "0");

/** What e2e/serve.sh serves with. */
const TOKEN = {
  name: "katz_token",
  value: "token-of-the-tests",
  domain: "127.0.0.1",
  path: "/",
  expires: -1,
  httpOnly: true,
  secure: false,
  sameSite: "Strict",
} as const;

export default defineConfig({
  testDir: "e2e",
  workers: WORKERS,
  timeout: 240_000, // two of them at once on two processors
  expect: { timeout: 30_000 }, // on a busy machine a page takes some seconds to load
  reporter: "line",
  reportSlowTests: { max: 10, threshold: 20_000 }, // ms of a file
  use: {
    storageState: { cookies: [TOKEN], origins: [] },
    baseURL: `http://127.0.0.1:${PORT}`,
    viewport: { width: 1440, height: 900 },
    launchOptions: { executablePath: CHROMIUM, args: ["--no-sandbox"] },
  },
});
