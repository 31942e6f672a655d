// A headless Chromium with a profile of its own.

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const EXECUTABLE = process.env.CHROMIUM ?? "/usr/bin/chromium";
const ARGUMENTS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export function version() {
  const asked = { encoding: "utf8", timeout: 20_000, stdio: ["ignore", "pipe", "ignore"] };
  return execFileSync(EXECUTABLE, ["--version"], asked).split(" ")[1];
}

/** Gives `use` a browser with one page, and closes it afterwards. */
export async function inChromium(use) {
  const profile = mkdtempSync(join(tmpdir(), "sluice-chromium-"));
  const options = { executablePath: EXECUTABLE, args: ARGUMENTS, headless: true, timeout: 60_000 };
  const browser = await chromium.launchPersistentContext(profile, options);
  try {
    return await use(browser, browser.pages()[0] ?? (await browser.newPage()));
  } finally {
    await browser.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}
