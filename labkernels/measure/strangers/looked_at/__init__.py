"""Sets that were held out once and looked at later, so they belong to the development set.

The first set lies in the folder above, because all other sets build on it.
"""

from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.eighth import bugs as eighth_bugs
from labkernels.measure.strangers.looked_at.eighth import inputs as eighth_inputs
from labkernels.measure.strangers.looked_at.eighth import right as eighth_right
from labkernels.measure.strangers.looked_at.eleventh import bugs as eleventh_bugs
from labkernels.measure.strangers.looked_at.eleventh import inputs as eleventh_inputs
from labkernels.measure.strangers.looked_at.eleventh import right as eleventh_right
from labkernels.measure.strangers.looked_at.fifteenth import bugs as fifteenth_bugs
from labkernels.measure.strangers.looked_at.fifteenth import inputs as fifteenth_inputs
from labkernels.measure.strangers.looked_at.fifteenth import right as fifteenth_right
from labkernels.measure.strangers.looked_at.fifth import bugs as fifth_bugs
from labkernels.measure.strangers.looked_at.fifth import inputs as fifth_inputs
from labkernels.measure.strangers.looked_at.fifth import right as fifth_right
from labkernels.measure.strangers.looked_at.fourteenth import bugs as fourteenth_bugs
from labkernels.measure.strangers.looked_at.fourteenth import inputs as fourteenth_inputs
from labkernels.measure.strangers.looked_at.fourteenth import right as fourteenth_right
from labkernels.measure.strangers.looked_at.fourth import bugs as fourth_bugs
from labkernels.measure.strangers.looked_at.fourth import inputs as fourth_inputs
from labkernels.measure.strangers.looked_at.fourth import right as fourth_right
from labkernels.measure.strangers.looked_at.ninth import bugs as ninth_bugs
from labkernels.measure.strangers.looked_at.ninth import inputs as ninth_inputs
from labkernels.measure.strangers.looked_at.ninth import right as ninth_right
from labkernels.measure.strangers.looked_at.second import bugs as second_bugs
from labkernels.measure.strangers.looked_at.second import inputs as second_inputs
from labkernels.measure.strangers.looked_at.second import right as second_right
from labkernels.measure.strangers.looked_at.seventeenth import bugs as seventeenth_bugs
from labkernels.measure.strangers.looked_at.seventeenth import inputs as seventeenth_inputs
from labkernels.measure.strangers.looked_at.seventeenth import right as seventeenth_right
from labkernels.measure.strangers.looked_at.seventh import bugs as seventh_bugs
from labkernels.measure.strangers.looked_at.seventh import bugs_of_another, bugs_of_one
from labkernels.measure.strangers.looked_at.sixteenth import bugs as sixteenth_bugs
from labkernels.measure.strangers.looked_at.sixteenth import inputs as sixteenth_inputs
from labkernels.measure.strangers.looked_at.sixteenth import right as sixteenth_right
from labkernels.measure.strangers.looked_at.sixth import bugs as sixth_bugs
from labkernels.measure.strangers.looked_at.sixth import inputs as sixth_inputs
from labkernels.measure.strangers.looked_at.sixth import right as sixth_right
from labkernels.measure.strangers.looked_at.tenth import bugs as tenth_bugs
from labkernels.measure.strangers.looked_at.tenth import inputs as tenth_inputs
from labkernels.measure.strangers.looked_at.tenth import right as tenth_right
from labkernels.measure.strangers.looked_at.third import bugs as third_bugs
from labkernels.measure.strangers.looked_at.third import inputs as third_inputs
from labkernels.measure.strangers.looked_at.third import right as third_right
from labkernels.measure.strangers.looked_at.thirteenth import bugs as thirteenth_bugs
from labkernels.measure.strangers.looked_at.thirteenth import inputs as thirteenth_inputs
from labkernels.measure.strangers.looked_at.thirteenth import right as thirteenth_right
from labkernels.measure.strangers.looked_at.twelfth import bugs as twelfth_bugs
from labkernels.measure.strangers.looked_at.twelfth import inputs as twelfth_inputs
from labkernels.measure.strangers.looked_at.twelfth import right as twelfth_right

FAMILIES = (
    second_inputs.FAMILIES
    | third_inputs.FAMILIES
    | fourth_inputs.FAMILIES
    | fifth_inputs.FAMILIES
    | sixth_inputs.FAMILIES
    | eighth_inputs.FAMILIES
    | ninth_inputs.FAMILIES
    | tenth_inputs.FAMILIES
    | eleventh_inputs.FAMILIES
    | twelfth_inputs.FAMILIES
    | thirteenth_inputs.FAMILIES
    | fourteenth_inputs.FAMILIES
    | fifteenth_inputs.FAMILIES
    | sixteenth_inputs.FAMILIES
    | seventeenth_inputs.FAMILIES
)
RIGHT = (
    second_right.RIGHT
    | third_right.RIGHT
    | fourth_right.RIGHT
    | fifth_right.RIGHT
    | sixth_right.RIGHT
    | eighth_right.RIGHT
    | ninth_right.RIGHT
    | tenth_right.RIGHT
    | eleventh_right.RIGHT
    | twelfth_right.RIGHT
    | thirteenth_right.RIGHT
    | fourteenth_right.RIGHT
    | fifteenth_right.RIGHT
    | sixteenth_right.RIGHT
    | seventeenth_right.RIGHT
)
WRONG = (
    second_bugs.WRONG
    | third_bugs.WRONG
    | fourth_bugs.WRONG
    | fifth_bugs.WRONG
    | sixth_bugs.WRONG
    | seventh_bugs.WRONG
    | bugs_of_one.WRONG
    | bugs_of_another.WRONG
    | eighth_bugs.WRONG
    | ninth_bugs.WRONG
    | tenth_bugs.WRONG
    | eleventh_bugs.WRONG
    | twelfth_bugs.WRONG
    | thirteenth_bugs.WRONG
    | fourteenth_bugs.WRONG
    | fifteenth_bugs.WRONG
    | sixteenth_bugs.WRONG
    | seventeenth_bugs.WRONG
)
ASKED: dict[str, Asked] = (
    eighth_bugs.ASKED
    | ninth_bugs.ASKED
    | tenth_bugs.ASKED
    | eleventh_bugs.ASKED
    | twelfth_bugs.ASKED
    | thirteenth_bugs.ASKED
    | fourteenth_bugs.ASKED
    | fifteenth_bugs.ASKED
    | sixteenth_bugs.ASKED
    | seventeenth_bugs.ASKED
)
