"""A person's whole sentences, for tests alone: telephone prompts and what they say.

In: Debian's `asterisk-core-sounds-en-wav` (8 kHz; Allison Smith, CC-BY-SA 3.0). Out: 80 sentences as mono
float32 at 16 kHz. Nothing of it is ever trained, nor shipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import recordings
import voices
from numpy.typing import NDArray

SPOKEN = """
agent-alreadyon That agent is already logged on. Please enter your agent number followed by the pound key.
agent-incorrect Login incorrect. Please enter your agent number followed by the pound key.
agent-newlocation Please enter a new extension followed by pound.
agent-pass Please enter your password followed by the pound key.
all-circuits-busy-now All circuits are busy now.
auth-incorrect Password incorrect. Please enter your password followed by the pound key.
cannot-complete-as-dialed Your call cannot be completed as dialed.
check-number-dial-again Please check the number and dial again.
conf-extended The conference has been extended.
conf-getchannel Please enter the channel number followed by the pound key.
conf-getconfno Please enter your conference number followed by the pound key.
conf-getpin Please enter the conference pin number.
conf-invalid That is not a valid conference number. Please try again.
conf-invalidpin That pin is invalid for this conference.
conf-kicked You have been kicked from this conference.
conf-leaderhasleft The leader has left the conference.
conf-noempty No empty conferences currently exist.
conf-nonextended The conference cannot be extended.
conf-now-recording The conference is now being recorded.
conf-onlyone There is currently one other participant in the conference.
conf-onlyperson You are currently the only person in this conference.
conf-placeintoconf You will now be placed into the conference.
conf-waitforleader The conference will begin when the leader arrives.
confbridge-begin-glorious-a The conference will begin when our glorious leader arrives.
confbridge-invalid You have entered an invalid option.
confbridge-lock-no-join The conference is currently locked and cannot be joined.
confbridge-pin-bad You have entered too many invalid personal identification numbers.
confbridge-removed You have been removed from the conference.
demo-echodone The echo test has been completed.
vm-savefolder Which folder should I save the message to?
demo-nomatch I'm sorry, there are no matches for those keywords.
vm-whichbox To leave a message, please enter a mailbox number.
dir-instr If this is the person you are looking for, press one now. Otherwise, please press star now.
dir-multi9 Press nine for more entries.
dir-nomatch No directory entries match your search.
dir-nomore There are no more compatible entries in the directory.
enter-num-blacklist Please enter the number to be blacklisted.
entr-num-rmv-blklist Please enter the number to be removed from the blacklist.
feature-not-avail-line That feature is not available on this line.
followme/options Press one to accept this call, or two to reject it.
followme/pls-hold-while-try Please hold while I try to locate the person you are calling.
followme/sorry I'm sorry, but I was unable to locate the person you are calling.
followme/status The person you are calling is not at their desk. I will try to locate them for you.
pbx-invalid I am sorry, but that's not a valid extension. Please try again.
pbx-invalidpark I am sorry, but there is no call parked on that extension. Please try again.
please-try-call-later Please try your call again later.
pls-hold-while-try Please hold while we try to connect you.
pm-invalid-option That option is invalid. Please try again.
priv-callpending I have a caller waiting, who introduces themselves as
priv-introsaved Thank you. Please hold while I attempt to connect you with your party.
priv-recordintro At the tone, please say your name.
privacy-incorrect I'm sorry, that number is not valid.
privacy-prompt Please enter your phone number, starting with the area code.
privacy-unident The party you are trying to reach does not accept unidentified calls.
queue-periodic-announce All of our representatives are currently busy. Please stay on the line and your call will be answered by the next available representative.
queue-thankyou Thank you for your patience.
queue-youarenext Your call is now first in line and will be answered by the next available representative.
speed-dial-empty The speed dial entry you've accessed is empty.
ss-noservice The number you have dialed is not in service. Please check the number and try again.
transfer Please hold while I try that extension.
tt-allbusy All representatives of the household are currently assisting other telemarketers. Please hold and your call will be answered in the order it was received.
tt-monkeysintro They have been carried away by monkeys.
tt-somethingwrong Something is terribly wrong.
tt-weasels Weasels have eaten our phone system.
vm-calldiffnum Press two to enter a different number.
vm-dialout Please wait while I connect your call.
vm-enter-num-to-call Please enter the number you wish to call.
vm-invalidpassword That is not a valid password. Please try again.
vm-mismatch The passwords you entered and re-entered did not match. Please try again.
vm-msgforwarded Your message has been successfully forwarded.
vm-nobodyavail Nobody is available to take your call at the moment.
vm-nobox You cannot reply to this message because the sender does not have a mailbox.
vm-nonumber I'm afraid I don't know who sent this message.
vm-passchanged Your passwords have been changed.
vm-rec-name After the tone, say your name, and then press the pound key.
vm-sorry I'm sorry, I did not understand your response.
vm-tempremoved Your temporary greeting has been removed.
vm-tocallback Press two to call the person who sent this message.
vm-toforward Press eight to forward the message to another user.
vm-tooshort Your message is too short.
"""  # noqa: E501


def transcripts() -> dict[str, str]:
    """What each prompt says, by its file name without ending."""
    return dict(line.split(" ", 1) for line in SPOKEN.strip().splitlines())


def sentences(folder: Path = recordings.FOLDER) -> dict[str, NDArray[np.float32]]:
    """Speech by text; SystemExit without the files."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: apt install asterisk-core-sounds-en-wav")
    return {text: _spoken(folder / f"{name}.wav") for name, text in transcripts().items()}


def _spoken(file: Path) -> NDArray[np.float32]:
    samples, rate = voices.trim(*voices.read_wav(file.read_bytes()), head_ms=40, tail_ms=80)
    wave = voices.resample(samples, rate, voices.RATE)
    return wave * np.float32(0.6 / np.abs(wave).max())
